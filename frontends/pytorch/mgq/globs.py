"""Patterns over parameter names, as mgq-compile's --trainable takes them."""

import functools
import re


@functools.cache
def split_globs(text):
    """Splits `A,B` at commas that no backslash or bracket protects."""
    return re.findall(r"(?:\\.|\[[!^]?\]?[^\]]*\]|[^,\\])+", text)


@functools.cache
def compile_glob(glob):
    """A regular expression: `*` any text, `?` one character, `[a-c]` or `[!a-c]` one of a
    set, a backslash takes the next character literally."""
    pattern = ""
    for part in re.findall(r"\\.|\[[!^]?\]?[^\]]*\]|.", glob, re.DOTALL):
        if part == "*":
            pattern += ".*"
        elif part == "?":
            pattern += "."
        elif part[0] == "[" and len(part) > 2:
            negated = part[1] in "!^"
            inside = part[1 + negated : -1].replace("\\", "\\\\").replace("[", "\\[")
            pattern += f"[{'^' if negated else ''}{inside}]"
        else:
            pattern += re.escape(part[-1])
    return re.compile(pattern, re.DOTALL)


def matches(globs, name):
    """Whether the whole of `name` matches one of the comma-separated `globs`."""
    return any(compile_glob(glob).fullmatch(name) for glob in split_globs(globs))
