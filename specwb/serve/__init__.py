"""A server with OpenAI's completions and chat endpoints, to try a method with clients that exist.

One request is decoded at a time and others wait; there are no keys and no users. It is for trying
things out on one's own machine and not a production server.

Source: the API reference of OpenAI, "Completions" and "Chat Completions". Differs from it in: what
is not offered is refused and not ignored, and answers have a field ``specwb``.
"""

from specwb.serve.jobs import RequestError
from specwb.serve.server import AddressError, Server, listening

__all__ = ["AddressError", "RequestError", "Server", "listening"]
