"""Tool calls in what a model writes: one parser for each family's way of writing them."""
