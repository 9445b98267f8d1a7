"""The paper's figures and tables, each by name: what it runs, the paper's numbers, ours beside them."""
