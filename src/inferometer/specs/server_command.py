"""The command that starts a server, from a shell line, a Compose file or a Kubernetes manifest: engine and flags.

launch = server_launch("docker run --gpus all vllm/vllm-openai:v0.25.1 --model Qwen/Qwen3-8B -tp 2")
launch.engine, launch.version, launch.flags      # 'vllm', '0.25.1', ['--model', 'Qwen/Qwen3-8B', '-tp', '2']

Lines are read as people paste them: with continuations that lost their line end, comments, variables and JSON without
quotes. Nothing is run, and no variable of this process is looked at. What the flags mean is `server_flags.py`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..base.errors import BadFile, BadValue, abbreviate
from ..base.files import input_text
from ..base.input_file import has_ending

_LAUNCHER = re.compile(
    r"\bvllm\s+serve\b|\bvllm\.entrypoints|\bsglang\.launch_server\b|\bsglang\s+serve\b|\btrtllm-serve\b"
)
_OTHERS = {  # servers whose flags are not read, by what their commands and images are called
    "MindIE": r"mindie",
    "LMDeploy": r"\blmdeploy\b",
    "Text Generation Inference": r"text-generation-(launcher|inference)",
    "llama.cpp": r"\bllama-server\b|llama\.cpp",
    "Ollama": r"\bollama\b",
    "Triton": r"\btritonserver\b",
}
_IMAGES = {"vllm": r"vllm-openai", "sglang": r"(^|/)sglang", "trtllm": r"tensorrt-llm"}
_TAG = re.compile(r":v?(\d+(?:\.\d+)+)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|\((\w+)\)|(\w+))")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
MAX_MANIFEST = 4_000_000  # characters
_ENDS = ("&&", "||", ";", "|", "&")


class ServerLaunch(NamedTuple):
    """A server's engine, its version where an image says it, its flags, and the variables that it is started with."""

    engine: str
    version: str
    flags: list[str]
    environment: dict[str, str]


def is_server_command(text: str) -> bool:
    """Whether a model's name is none, but a command or a manifest: ``is_server_command("vllm serve Qwen/Qwen3-8B")``"""
    shell = bool(_LAUNCHER.search(text)) or ("vllm-openai" in text and " " in text.strip())
    return shell or has_ending(text, ".yml", ".yaml") or bool(_other_engine(text))


def _other_engine(text: str) -> str:
    """A server that is known by name alone: ``_other_engine("ollama serve")  # 'Ollama'``"""
    if not re.search(r"\s(-|serve\b|run\b)", text):  # a path may have such a name, too
        return ""
    return next((name for name, pattern in _OTHERS.items() if re.search(pattern, text, re.IGNORECASE)), "")


def server_launch(text: str) -> ServerLaunch:
    """The server that a command or a file starts; of several, the first one that answers requests."""
    if has_ending(text, ".yml", ".yaml") and not any(space in text for space in " \n"):
        return _from_manifest(text)
    launch = _located(split_command(text), {})
    if launch is None:
        other = _other_engine(text)
        if other:
            raise BadValue(
                f"{other} is not an engine that inferometer has: commands of vLLM, SGLang and TensorRT-LLM are read. "
                "Name the model itself, and the `engine` that is nearest to it",
                field="model",
            )
        raise BadValue(
            f"no server is started by {abbreviate(text)}: expected vllm serve, python -m sglang.launch_server, "
            "trtllm-serve, or docker run with one of their images",
            field="model",
        )
    return launch


# ------------------------------------------------------------------ a line of a shell


def split_command(text: str) -> list[str]:
    """A line as a shell splits it, but kinder: ``split_command('a \\\\ b=\\'c d\\'')  # ['a', 'b=c d']``

    A backslash before a space is a continuation whose line end was lost; braces without quotes are kept as JSON.
    """
    tokens: list[str] = []
    token, started, at = "", False, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            following = text[at + 1 : at + 2]
            token, started = (token, started) if following in "\n\r\t " else (token + following, True)
            at += 2 if following not in "\n\r\t " else 1
        elif char in "'\"":
            inside, at = _quoted(text, at)
            token, started = token + inside, True
        elif char == "{" and (not started or token.endswith("=")):
            end = _brace_end(text, at)
            token, started, at = token + text[at:end], True, end
        elif char == "#" and not started and not _LAUNCHER.search(text[at:].partition("\n")[0]):
            at = (text + "\n").index("\n", at)
        elif char.isspace() or char in ";&|" or text[at : at + 2] == "&&":
            tokens += [token] if started else []
            operator = next((sign for sign in _ENDS if text.startswith(sign, at)), "")
            tokens += [operator] if operator else []
            token, started, at = "", False, at + (len(operator) or 1)
        else:
            token, started, at = token + char, True, at + 1
    return [*tokens, token] if started else tokens


def _quoted(text: str, at: int) -> tuple[str, int]:
    """What stands between two quotes, and where that ends; in double quotes a backslash keeps a quote."""
    quote, inside = text[at], ""
    at += 1
    while at < len(text) and text[at] != quote:
        if text[at] == "\\" and quote == '"' and text[at + 1 : at + 2] in '"\\\n$':
            at += 1
            inside += "" if text[at] == "\n" else text[at]
        else:
            inside += text[at]
        at += 1
    return inside, at + 1


def _brace_end(text: str, at: int) -> int:
    depth = 0
    for end in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return end + 1
    return len(text)


def _located(tokens: Sequence[str], environment: Mapping[str, str]) -> ServerLaunch | None:
    """The server among the words of a command: behind variables, docker, mpirun, a shell, or nothing at all."""
    known = dict(environment)
    version = ""
    for at, token in enumerate(tokens):
        assigned = _ASSIGNMENT.fullmatch(token)
        if assigned and not token.startswith("-"):
            known[assigned[1]] = assigned[2]
        if " " in token and _LAUNCHER.search(token):  # bash -c "…"
            inner = _located(split_command(token), known)
            return inner and inner._replace(version=inner.version or version)
        image = next((engine for engine, pattern in _IMAGES.items() if _is_image(token, pattern)), "")
        tag = _TAG.search(token) if image else None
        version = tag[1] if tag else version
        engine, start = _started(tokens, at)
        if not engine and image == "vllm" and _located(tokens[at + 1 :], known) is None:
            engine, start = image, at + 1  # its entry point is `vllm serve`
        if engine:
            rest = [_filled(word, known) for word in tokens[start:]]
            end = next((n for n, word in enumerate(rest) if word in _ENDS or re.match(r"\d?>", word)), len(rest))
            return ServerLaunch(engine, version, rest[:end], known)
    return None


def _is_image(token: str, pattern: str) -> bool:
    return bool(re.search(pattern, token)) and ("/" in token or ":" in token) and not token.startswith(("-", ".", "/"))


def _started(tokens: Sequence[str], at: int) -> tuple[str, int]:
    """The engine that a word starts, and where its flags begin: ``_started(["vllm", "serve"], 0)  # ('vllm', 2)``"""
    name, following = os.path.basename(tokens[at]), tokens[at + 1] if at + 1 < len(tokens) else ""
    if name in ("vllm", "sglang") and following == "serve":
        return name, at + 2
    if name == "trtllm-serve":
        return "trtllm", at + (2 if following == "serve" else 1)
    if tokens[at] == "-m" and following.startswith("vllm.entrypoints"):
        return "vllm", at + 2
    if tokens[at] == "-m" and following == "sglang.launch_server":
        return "sglang", at + 2
    return "", 0


def _filled(word: str, known: Mapping[str, str]) -> str:
    """A word with the variables that the command itself sets; others stay as they are."""
    return _VARIABLE.sub(lambda match: known.get(next(filter(None, match.groups())), match[0]), word)


# ------------------------------------------------------------------ Compose and Kubernetes


def _from_manifest(text: str) -> ServerLaunch:
    manifest = input_text(text)
    if manifest is None:
        raise BadFile(f"no file {abbreviate(text)}", field="model")
    if len(manifest) > MAX_MANIFEST:
        raise BadFile(f"{text} has more than {MAX_MANIFEST:,} characters, which no such file has", field="model")
    launches = []
    seen: set[int] = set()
    documents = read_yaml(manifest, text)
    for document in documents:
        for container in _containers(document, seen):
            environment = _environment(container)
            image = str(container.get("image") or "")
            parts = [_argv(container.get(key)) for key in ("entrypoint", "command", "args")]
            launch = _located([image, *(word for part in parts for word in part)], environment)
            launches += [launch] if launch is not None else []
    if not launches:
        raise BadFile(f"{text} has no container that starts vLLM, SGLang or TensorRT-LLM", field="model")
    return next((one for one in launches if "--headless" not in one.flags), launches[0])


def _containers(node: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
    """Every mapping that has a command or an image, from the top down; what aliases repeat comes once."""
    if isinstance(node, dict | list):
        if id(node) in seen:
            return
        seen.add(id(node))
    if isinstance(node, dict):
        if any(isinstance(node.get(key), str | list) for key in ("command", "args", "image")):
            yield node
        for value in node.values():
            yield from _containers(value, seen)
    elif isinstance(node, list):
        for value in node:
            yield from _containers(value, seen)


def _argv(value: Any) -> list[str]:
    return split_command(value) if isinstance(value, str) else [str(word) for word in value or []]


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Variables of a container, in Compose's two forms and in Kubernetes'."""
    given = container.get("environment") or container.get("env") or {}
    if isinstance(given, dict):
        return {str(key): str(value) for key, value in given.items()}
    pairs = [
        (one.get("name"), one.get("value", "")) if isinstance(one, dict) else str(one).split("=", 1) for one in given
    ]
    return {str(pair[0]): str(pair[1]) for pair in pairs if len(pair) == 2}


# ------------------------------------------------------------------ the part of YAML that such files are written in


class _Line(NamedTuple):
    indent: int
    text: str  # without indent and comment
    raw: str


def read_yaml(text: str, where: str) -> list[Any]:
    """Documents of mappings, lists and scalars: ``read_yaml("a: [b, 'c d']", "x.yaml")  # [{'a': ['b', 'c d']}]``

    A library would be one more to install, for files of which only commands are read.
    """
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
        elif char in "'\"" and (at == 0 or raw[at - 1] in " [{:,="):
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
        items = []
        while self.skip_blank():
            line = self.lines[self.at]
            if line.indent != indent or not (line.text.startswith("- ") or line.text == "-"):
                break
            rest = line.text[1:].strip()
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
            name, rest = key
            anchor = re.match(r"&(\S+)\s*", rest)
            rest = rest[anchor.end() :] if anchor else rest
            self.at += 1
            nested = (
                self.skip_blank() and self.lines[self.at].text.startswith("-") and self.lines[self.at].indent == indent
            )
            value = self._scalar(rest, indent + 1) if rest else self.block(indent if nested else indent + 1)
            if anchor:
                self.anchors[anchor[1]] = value
            table = {**value, **table} if name == "<<" and isinstance(value, dict) else {**table, name: value}
        return table

    def _scalar(self, text: str, least: int) -> Any:
        """A value that begins on this line and may go on over deeper ones."""
        if re.fullmatch(r"[|>][+-]?\d?", text):
            return self._literal(least, folded=text[0] == ">")
        if text[0] == "*":
            return self.anchors.get(text[1:])
        while self.skip_blank() and self.lines[self.at].indent >= least and not _whole(text):
            text += " " + self.lines[self.at].text
            self.at += 1
        return _flow(text)[0]

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
    match = re.match(r"""("[^"]*"|'[^']*'|[^\s\[{"'&*|>#][^:]*?)\s*:(?:\s+(.*))?$""", text)
    return (match[1].strip("'\""), (match[2] or "").strip()) if match else None


def _whole(text: str) -> bool:
    """Whether a value ends here: brackets and quotes are closed, or it is plain and goes on while lines are deeper."""
    if text[0] in "[{":
        return text.count("[") + text.count("{") <= text.count("]") + text.count("}")
    return text[0] in "'\"" and len(text) > 1 and text.endswith(text[0])


def _flow(text: str) -> tuple[Any, str]:
    """A value in one line, and what is left of it: ``_flow("[a, 'b c']")  # (['a', 'b c'], '')``"""
    text = text.strip()
    if text[:1] in ("'", '"'):
        inside, end = _quoted(text, 0)
        return inside, text[end:].strip()
    if text[:1] not in ("[", "{"):
        return text, ""
    try:  # JSON is YAML, and what people write here
        return json.loads(text), ""
    except ValueError:
        pass
    close, items, rest = {"[": "]", "{": "}"}[text[0]], [], text[1:].strip()
    while rest and rest[0] != close:
        if rest[0] in "[{'\"":
            item, rest = _flow(rest)
        else:
            plain = str(re.match(r"[^,\]}]*", rest)[0])  # type: ignore[index]
            item, rest = plain.strip(), rest[len(plain) :]
            if not plain and rest[0] != ",":  # a bracket of the other kind
                break
        items.append(item)
        rest = rest.lstrip().removeprefix(",").lstrip()
    if close == "]":
        return items, rest[1:]
    pairs = (str(item).partition(":") for item in items)
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}, rest[1:]
