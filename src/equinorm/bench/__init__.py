"""``equinorm bench``: what normalising costs, measured side by side with everything it competes with.

overhead.py, step.py, convergence.py, analysis.py and memory.py each hold one benchmark: settings, a measurement, the
table and the picture of it. The rest is what they share. Every time is a median over rounds in which all rivals
ran one after the other (timing.py).
"""
