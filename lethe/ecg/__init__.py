"""A real model trained on the kernels: twelve-lead electrocardiograms of PTB-XL, five diagnostic
superclasses.

``wfdb`` reads a record, ``ptbxl`` the data set, ``synthetic`` makes records of the same layout, ``model`` and
``resnet`` are the classifiers, ``train`` fits them on one device or, by torchrun, on several, and ``scores``
says how good they are. Everything is imported on first use; ``python -m lethe.ecg --help`` lists the
commands.
"""
