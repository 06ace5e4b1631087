"""Stop jsonschema, and so nbformat, from building grammars that no notebook needs."""

import sys


def skip_address_grammars() -> None:
    """Save 1.5 s in a process that reads notebooks. Use only in processes of our own, such as the `fusion` command.

    If rfc3987_syntax is installed, jsonschema imports it, and it builds 38 grammars for addresses with non-ASCII
    letters. No field of a notebook contains such an address.
    """
    if "jsonschema" not in sys.modules:
        sys.modules.setdefault("rfc3987_syntax", None)
