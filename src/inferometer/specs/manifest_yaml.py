"""The part of YAML that manifests of servers are written in, read without a library.

read_yaml("a: [b, 'c d']", "x.yaml")    # [{'a': ['b', 'c d']}]

A library would be one more to install, for files of which only commands are read. Scalars stay texts.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from ..base.errors import BadFile, abbreviate

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "e": "\x1b", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_SINGLE = re.compile(r"'([^']*(?:''[^']*)*)'?")
_DOUBLE = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"?', re.DOTALL)
_SPACE, _PLAIN, _PLAIN_KEY = re.compile(r"\s*"), re.compile(r"[^,\]}]*"), re.compile(r"(?:[^,\]}:]+|:(?=\S))*+")
_BEFORE_QUOTES = " [{:,="  # after these a quote begins; within a word it is an apostrophe


class _Line(NamedTuple):
    indent: int
    text: str  # without indent and comment
    raw: str


def read_yaml(text: str, where: str) -> list[Any]:
    """Documents of mappings, lists and scalars: ``read_yaml("a: [b, 'c d']", "x.yaml")  # [{'a': ['b', 'c d']}]``"""
    documents = []
    for part in re.split(r"(?m)^---.*$", text):
        lines = [_Line(len(raw) - len(raw.lstrip()), _bare(raw), raw) for raw in part.replace("\t", "  ").splitlines()]
        reader = _YamlReader(lines, where)
        try:
            documents += [reader.block(0)] if reader.skip_blank() else []
        except RecursionError:
            raise BadFile(f"{where} is nested too deeply", field="model") from None
    return documents


def _bare(raw: str) -> str:
    """A line without its comment: a # at its start or after a space, outside of quotes."""
    quote = ""
    for at, char in enumerate(raw):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and (at == 0 or raw[at - 1] in _BEFORE_QUOTES):
            quote = char
        elif char == "#" and (at == 0 or raw[at - 1].isspace()):
            return raw[:at].strip()
    return raw.strip()


class _YamlReader:
    """Reads lines from top to bottom; an indent says what belongs to what."""

    def __init__(self, lines: list[_Line], where: str) -> None:
        self.lines, self.at, self.where = lines, 0, where
        self.anchors: dict[str, Any] = {}

    def skip_blank(self) -> bool:
        """Go to the next line that says something; whether there is one."""
        while self.at < len(self.lines) and not self.lines[self.at].text:
            self.at += 1
        return self.at < len(self.lines)

    def block(self, least: int) -> Any:
        """The mapping, list or scalar that begins here, if it is indented by at least so much."""
        if not self.skip_blank() or self.lines[self.at].indent < least:
            return None
        line = self.lines[self.at]
        if line.text.startswith("- ") or line.text == "-":
            return self._list(line.indent)
        if _key(line.text) is not None:
            return self._mapping(line.indent)
        self.at += 1
        return self._scalar(line.text, line.indent)

    def _list(self, indent: int) -> list[Any]:
        items: list[Any] = []
        while self.skip_blank():
            line = self.lines[self.at]
            if line.indent != indent or not (line.text.startswith("- ") or line.text == "-"):
                break
            anchor, rest = _anchored(line.text[1:].strip())
            if not rest:
                self.at += 1
                items.append(self.block(indent + 1))
            elif _key(rest) is not None:  # a mapping that begins behind the dash
                inner = indent + line.text.index(rest)
                self.lines[self.at] = _Line(inner, rest, " " * inner + rest)
                items.append(self._mapping(inner))
            else:
                self.at += 1
                items.append(self._scalar(rest, indent + 1))
            if anchor:
                self.anchors[anchor] = items[-1]
        return items

    def _mapping(self, indent: int) -> dict[str, Any]:
        table: dict[str, Any] = {}
        while self.skip_blank():
            line = self.lines[self.at]
            key = _key(line.text) if line.indent == indent else None
            if key is None:
                if line.indent > indent:
                    raise BadFile(f"{self.where}: cannot read {abbreviate(line.text)}")
                break
            name, (anchor, rest) = key[0], _anchored(key[1])
            self.at += 1
            nested = (
                self.skip_blank() and self.lines[self.at].text.startswith("-") and self.lines[self.at].indent == indent
            )
            value = self._scalar(rest, indent + 1) if rest else self.block(indent if nested else indent + 1)
            if anchor:
                self.anchors[anchor] = value
            if name == "<<":
                for merged in reversed(value if isinstance(value, list) else [value]):
                    table = {**merged, **table} if isinstance(merged, dict) else table
            else:
                table[name] = value
        return table

    def _scalar(self, text: str, least: int) -> Any:
        """A value that begins on this line and may go on over further ones: while it is open, or they are deeper."""
        if re.fullmatch(r"[|>][+-]?\d?[+-]?", text):
            return self._literal(least, folded=text[0] == ">")
        if text[0] == "*":
            return self.anchors.get(text[1:])
        if text[0] in "[{'\"":
            return self._closed(text)
        parts = [text]
        while self.skip_blank() and self.lines[self.at].indent >= least:
            parts.append(self.lines[self.at].text)
            self.at += 1
        return " ".join(parts)

    def _closed(self, text: str) -> Any:
        """A value in brackets or quotes, whose end may be on a line of any indent."""
        parts, (depth, quote) = [text], _open(text)
        while (depth > 0 or quote) and self.at < len(self.lines):
            line = self.lines[self.at]
            part = line.raw.strip() if quote else line.text
            if quote == '"' and (len(parts[-1]) - len(parts[-1].rstrip("\\"))) % 2:
                parts[-1] = parts[-1][:-1]  # a backslash at the end joins two lines without a space
            elif part:
                parts.append(" ")
            parts.append(part)
            depth, quote = _open(part, depth, quote)
            self.at += 1
        if depth > 0 or quote:
            what = "quote" if quote else "bracket"
            raise BadFile(f"{self.where}: the {what} in {abbreviate(text)} is never closed", field="model")
        value = _flow("".join(parts))
        if isinstance(value, list):
            return [self._aliased(item) for item in value]
        return value

    def _aliased(self, item: Any) -> Any:
        return self.anchors.get(item[1:], item) if isinstance(item, str) and item.startswith("*") else item

    def _literal(self, least: int, folded: bool) -> str:
        lines = []
        while self.at < len(self.lines) and (
            self.lines[self.at].indent >= least or not self.lines[self.at].raw.strip()
        ):
            lines.append(self.lines[self.at].raw)
            self.at += 1
        margin = min((len(raw) - len(raw.lstrip()) for raw in lines if raw.strip()), default=0)
        return (" " if folded else "\n").join(raw[margin:] for raw in lines).strip("\n")


def _key(text: str) -> tuple[str, str] | None:
    """Key and rest of ``key: rest``; None for anything else."""
    match = re.match(r"""("[^"]*"\s*|'[^']*'\s*|[^\s\[{"'&*|>#][^:]*):(?:\s+(.*))?$""", text)
    return (match[1].strip().strip("'\""), (match[2] or "").strip()) if match else None


def _anchored(text: str) -> tuple[str, str]:
    """The name of an anchor and what it stands before: ``_anchored("&a [b]")  # ('a', '[b]')``"""
    match = re.match(r"&(\S+)\s*", text)
    return (match[1], text[match.end() :]) if match else ("", text)


def _open(text: str, depth: int = 0, quote: str = "") -> tuple[int, str]:
    """Brackets and the quote that are open after a text: ``_open("[a, 'b")  # (1, "'")``"""
    at = 0
    while at < len(text):
        char = text[at]
        if quote:
            if (char == "\\" and quote == '"') or (quote == "'" and text.startswith("''", at)):
                at += 1
            elif char == quote:
                quote = ""
                if not depth:
                    break
        elif char in "'\"" and (at == 0 or text[at - 1] in _BEFORE_QUOTES):
            quote = char
        else:
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(char, 0)
        at += 1
    return depth, quote


def _flow(text: str) -> Any:
    """A value in brackets or quotes: ``_flow("[a, 'b c', {d: e}]")  # ['a', 'b c', {'d': 'e'}]``"""
    if text[0] in "[{":
        try:  # JSON is YAML, and what people write here
            return json.loads(text)
        except ValueError:
            pass
    return _item(text, 0, _PLAIN)[0]


def _item(text: str, at: int, plain: re.Pattern[str]) -> tuple[Any, int]:
    """The value that begins at a place, and where it ends."""
    if text.startswith(("'", '"'), at):
        return _unquoted(text, at)
    if text.startswith(("[", "{"), at):
        return _brackets(text, at)
    end = _end(plain, text, at)
    return text[at:end].strip(), end


def _brackets(text: str, at: int) -> tuple[Any, int]:
    """The list or mapping whose bracket is at a place, and where it ends; what cannot be read is left out."""
    items: list[Any] = []
    table: dict[str, Any] = {}
    is_list, at = text[at] == "[", _end(_SPACE, text, at + 1)
    while at < len(text) and text[at] not in "]}":
        item, at = _item(text, at, _PLAIN if is_list else _PLAIN_KEY)
        at = _end(_SPACE, text, at)
        if is_list:
            items.append(item)
        elif text.startswith(":", at):
            table[str(item)], at = _item(text, _end(_SPACE, text, at + 1), _PLAIN)
        at = _end(_PLAIN, text, at)
        at = _end(_SPACE, text, at + text.startswith(",", at))
    return items if is_list else table, at + 1


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a pattern that matches anywhere, nothing if need be, ends."""
    match = pattern.match(text, at)
    return match.end() if match else at


def _unquoted(text: str, at: int) -> tuple[str, int]:
    """What stands in the quotes at a place, and where they end: ``_unquoted("'it''s', b", 0)  # ("it's", 7)``"""
    is_single = text[at] == "'"
    match = (_SINGLE if is_single else _DOUBLE).match(text, at)
    assert match is not None  # there is a quote, and nothing more is needed
    return match[1].replace("''", "'") if is_single else _ESCAPE.sub(_escaped, match[1]), match.end()


def _escaped(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else match[0]
    return _ESCAPES.get(code, code)
