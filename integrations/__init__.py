"""One module per host of a hyperparameter search."""
