"""Write files so that they are either complete or absent."""

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write to a temporary file next to the target and rename it, so that an interrupted run leaves no partial file."""
    beside = path.with_name(f".{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode(errors="replace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {error.strerror}; make room or choose another folder, then use --resume"
        ) from None
