"""The blocks of a model whose residual streams a monitor follows, list by list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torch import nn

from joma.instruments.watch.owners import LOOKS_LIKE_ATTENTION

Members = list[nn.Module]


class Block(NamedTuple):
    """One block: which of the model's lists of blocks it stands in, and where."""

    stack: str
    """What tells its list from the model's other ones (``encoder``, ``student``); empty where it has one."""
    number: int
    name: str
    module: nn.Module

    def holds(self, name: str) -> bool:
        """Whether a module of this name, or a weight, lies in the block."""
        return name == self.name or name.startswith(f"{self.name}.")


def residual_blocks(model: nn.Module) -> list[Block]:
    """The members of all lists of like modules that hold an attention: towers, stages, students and teachers.

    Of lists within one another those of blocks count: whose members hold a matrix beside their attention
    (stages hold lists of blocks; heads, or the parts of a block, are none). Where nothing looks like an
    attention, the longest list counts, and those of the same kind of module; lists within a block (its
    experts) are none.
    """
    every = list(_lists(model))
    holding = {name: members for name, members in every if any(map(_attentions, members))}
    whole = {name for name, members in holding.items() if all(map(_is_block, members))}
    chosen = {
        name: members
        for name, members in holding.items()
        if not any(_is_within(inner, [name]) for inner in whole) and (name in whole or not whole)
    }
    chosen = {name: members for name, members in chosen.items() if not _is_within(name, chosen)}
    if not chosen:
        inside = [name for name, members in every if len(members) > 1]
        outermost = {name: members for name, members in every if not _is_within(name, inside)}
        longest = max(outermost.values(), key=len, default=[])
        chosen = {
            name: members
            for name, members in outermost.items()
            if members is longest or (longest and type(members[0]) is type(longest[0]) and len(members) > 1)
        }
    return [
        Block(stack, number, f"{name}.{number}".lstrip("."), block)
        for (name, members), stack in zip(chosen.items(), _told_apart(list(chosen)), strict=True)
        for number, block in enumerate(members)
    ]


def learning_blocks(blocks: Sequence[Block]) -> list[Block]:
    """Those of the lists in which something is trained; all where nothing is (a prompt may be)."""
    stacks = {block.stack for block in blocks if trains(block.module)}
    return [block for block in blocks if block.stack in stacks] or list(blocks)


def trains(module: nn.Module) -> bool:
    """Whether some parameter in it takes gradients."""
    return any(parameter.requires_grad for parameter in module.parameters())


def block_of(blocks: Iterable[Block], name: str) -> Block | None:
    """The block that a module, or a weight, of this name lies in."""
    return next((block for block in blocks if block.holds(name)), None)


def _lists(model: nn.Module) -> Iterable[tuple[str, Members]]:
    """Lists of like modules, outer ones before those within."""
    for name, module in model.named_modules():
        members = list(module) if isinstance(module, nn.ModuleList | nn.Sequential) else []
        alike = len({type(member) for member in members}) == 1
        if alike and (isinstance(module, nn.ModuleList) or any(map(_parts, members))):
            yield name.replace("_orig_mod.", ""), members


def _is_within(name: str, others: Iterable[str]) -> bool:
    return any(name != other and name.startswith(f"{other}.".lstrip(".")) for other in others)


def _parts(module: nn.Module) -> Members:
    return [part for part in module.modules() if part is not module]


def _attentions(block: nn.Module) -> Members:
    return [part for part in _parts(block) if LOOKS_LIKE_ATTENTION.search(type(part).__name__)]


def _is_block(member: nn.Module) -> bool:
    """Whether it holds an attention and a matrix beside it."""
    attentions = _attentions(member)
    inside = {id(weight) for part in attentions for weight in part.parameters()}
    beside: Callable[[nn.Parameter], bool] = lambda weight: weight.ndim > 1 and id(weight) not in inside  # noqa: E731
    return bool(attentions) and any(map(beside, member.parameters()))


def _told_apart(names: list[str]) -> list[str]:
    """The names without what all of them begin and end with; empty for a single one."""
    if len(names) < 2:
        return [""] * len(names)
    parts = [name.split(".") for name in names]
    shortest = min(map(len, parts))
    begin = next((i for i in range(shortest) if len({part[i] for part in parts}) > 1), shortest)
    end = next((i for i in range(shortest - begin) if len({part[-1 - i] for part in parts}) > 1), 0)
    return [".".join(part[begin : len(part) - end]) or name for part, name in zip(parts, names, strict=True)]
