"""specwb serve: OpenAI's endpoints with a method, to try it with clients that exist."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from specwb.commands.shared import (
    DEVICE,
    DRAFT,
    DTYPE,
    LOAD,
    TARGET,
    TEMPLATE,
    errors,
    loaded,
)
from specwb.extras import require


def serve(
    target: TARGET = "lab",
    method: Annotated[
        str, typer.Option(help="A method with its options, such as mcsd:tree=4-2-2.")
    ] = "sps",
    draft: DRAFT = None,
    template: TEMPLATE = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    loading: LOAD = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 8000,
) -> None:
    """Serve OpenAI's completions and chat endpoints, one request at a time.

    Answers have a field specwb with the method and its acceptance. For trying a method with clients
    that exist; it is no production server.
    """
    require("specwb serve", "serve", "starlette", "uvicorn")
    import uvicorn

    from specwb.methods import built_with
    from specwb.serve import Server, listening

    socket = listening(host, port)  # before the work of loading
    model = loaded(target, device, dtype, loading, template=template)
    chosen = built_with(method, model, draft)
    server = Server(model, chosen)
    lossy = " (LOSSY)" if chosen.exactness.value == "LOSSY" else ""
    place = f"[{host}]" if ":" in host else host
    errors.print(
        f"{model.name} with {chosen.key}{lossy} at http://{place}:{socket.getsockname()[1]}/v1, "
        "one request at a time; "
        "no production server. Ctrl-C ends it.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    config = uvicorn.Config(server.app, log_level="warning")
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        uvicorn.Server(config).run(sockets=[socket])
