"""The paper's experiments, runnable by anyone (the extra ``[experiments]``); the library never imports this."""
