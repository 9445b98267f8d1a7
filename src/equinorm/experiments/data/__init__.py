"""The data sets of the paper's experiments: ``load`` gives training, validation and test ``Split``s.

load.py        which data set, from where, how much of it
interface.py   Data, Split, Augmentation
order.py       which examples a process sees in which order: a function of (seed, epoch, rank)
memory.py      images held as bytes; cropped, flipped and normalised a batch at a time
mnist.py, cifar10.py, digits.py, imagenet.py   where the examples come from
digest.py      what tells these examples from others
files.py, download.py   reading and fetching files, with checksums
"""

from equinorm.experiments.data.interface import Augmentation, Data, Split
from equinorm.experiments.data.load import fingerprint, load

__all__ = ["Augmentation", "Data", "Split", "fingerprint", "load"]
