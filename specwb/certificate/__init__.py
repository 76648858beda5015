"""Exact certificates of verifiers: is somebody's verification function lossless?

``certify`` is the public function, ``child`` the process that the function runs in, ``measure``
compares distributions of texts on ``instances``; ``forking``, ``symbols`` and ``interception``
follow a function's random numbers. ``adapters`` are for functions with the signature of an engine,
``known`` has verifiers of known verdict, and ``rules`` checks the rules of this project.
"""

from specwb import modules_of

__getattr__ = modules_of(__name__)
