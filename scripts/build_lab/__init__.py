"""Builds the lab family, ``data/lab``, from text: ``python -m scripts.build_lab``.

It is no part of the package; users' heads are trained by ``specwb train``.
"""
