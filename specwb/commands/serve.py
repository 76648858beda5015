"""specwb serve: OpenAI's endpoints with a method, to try it with clients that exist."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specwb.commands import options as opt
from specwb.commands.shared import errors, loaded, whole
from specwb.extras import require

if TYPE_CHECKING:
    import uvicorn


def serve(
    target: opt.TARGET = "lab",
    method: opt.METHOD = "sps",
    draft: opt.DRAFT = None,
    template: opt.TEMPLATE = None,
    device: opt.DEVICE = "auto",
    dtype: opt.DTYPE = "auto",
    loading: opt.LOAD = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 8000,
) -> None:
    """Serve OpenAI's completions and chat endpoints, one request at a time.

    Answers have a field specwb with the method and its acceptance. For trying a method with clients
    that exist; it is not a production server.
    """
    require("specwb serve", "serve", "starlette", "uvicorn")
    from specwb.methods import built_with
    from specwb.serve import Server, listening

    socket = listening(host, port)  # before the work of loading
    model = loaded(target, device, dtype, loading, template=template)
    chosen = built_with(method, model, draft)
    web = interruptible(Server(model, chosen, host))
    lossy = " (LOSSY)" if chosen.exactness.value == "LOSSY" else ""
    place = f"[{host}]" if ":" in host else host
    whole(
        errors,
        f"{model.name} with {chosen.key}{lossy} at http://{place}:{socket.getsockname()[1]}/v1, "
        "one request at a time; "
        "not a production server. Ctrl-C ends it.",
    )
    web.run(sockets=[socket])


def interruptible(app: Any) -> uvicorn.Server:
    """A server of an application that an interrupt ends, from here on.

    The first lets answers under way be finished. The second ends the process at once: it is caught
    wherever the program is, and waits for no thread, so a step that takes long does not matter.
    """
    import uvicorn

    web = uvicorn.Server(uvicorn.Config(app, log_level="warning"))

    def end(sig: int, frame: FrameType | None) -> None:
        if web.should_exit:
            os._exit(130)
        web.should_exit = True
        if web.server_state.tasks:
            os.write(2, b"answers under way are finished first; Ctrl-C again ends them\n")

    # uvicorn puts its own handlers in the place of those that it finds, and these back afterwards
    web.handle_exit = end  # type: ignore[method-assign]
    signal.signal(signal.SIGINT, end)
    return web
