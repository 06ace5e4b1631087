"""Keep jsonschema, and so nbformat, from building grammars that no notebook needs."""

import sys


def skip_address_grammars() -> None:
    """Save this process 1.5 s where it reads notebooks. Only for processes of our own, such as the `fusion` command.

    jsonschema imports rfc3987_syntax where it is installed, which builds 38 grammars for addresses with letters beyond
    ASCII. No field of a notebook holds one.
    """
    if "jsonschema" not in sys.modules:
        sys.modules.setdefault("rfc3987_syntax", None)
