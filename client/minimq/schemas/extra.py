"""Libraries that only the extra `minimq[schemas]` brings."""

from importlib.util import find_spec


def check_installed(library: str) -> None:
    """Raise `ModuleNotFoundError` with the remedy unless a library is installed."""
    if find_spec(library) is None:
        raise ModuleNotFoundError(f"minimq.schemas needs {library}: pip install 'minimq[schemas]'", name=library)
