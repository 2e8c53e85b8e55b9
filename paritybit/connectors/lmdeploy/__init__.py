"""The connector of LMDeploy's PyTorch engine. TurboMind, its other engine, is not watched.

Importing this package imports neither torch nor lmdeploy.
"""

from paritybit.connectors import begin


def connect() -> None:
    """Wrap the PyTorch engine when it is imported."""
    from paritybit.watch.attach import when_imported  # noqa: PLC0415

    when_imported("lmdeploy.pytorch.engine.engine", lambda: begin("lmdeploy"))
