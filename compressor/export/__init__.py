"""Export of models to verified graphs, with all files that the torch-free runtime needs."""
