"""How attention is found in what a model runs: kernels, fused layers, and softmaxes of scores."""
