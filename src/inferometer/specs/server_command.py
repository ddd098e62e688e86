"""The command that starts a server, from a shell line, a Compose file or a Kubernetes manifest: engine and flags.

launch = server_launch("docker run --gpus all vllm/vllm-openai:v0.25.1 --model Qwen/Qwen3-8B -tp 2")
launch.engine, launch.version, launch.flags      # 'vllm', '0.25.1', ['--model', 'Qwen/Qwen3-8B', '-tp', '2']

Lines are read as people paste them: with continuations that lost their line end, comments, variables and JSON without
quotes. Nothing is run, and no variable of this process is looked at. What the flags mean is `server_flags.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..base.errors import BadFile, BadValue, abbreviate
from ..base.files import input_text
from ..base.input_file import has_ending
from .manifest_yaml import read_yaml

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
_PROGRAM = re.compile(
    r"\s*(?:\S*/)?(vllm|sglang|trtllm\S*|python[\d.]*|docker|podman|kubectl|mpirun|srun|(ba)?sh)\s+\S"
)
_OTHER_PROGRAMS = re.compile(r"(ba|da|z)?sh|python[\d.]*|ray|env|sleep|tail|.*\.(sh|py)")  # that images may start
_NO_SERVERS = ("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve")  # of trtllm-serve
_VARIABLE = re.compile(r"\$?\$(?:\{(\w+)(?:(:?[-=?+])([^{}]*))?\}|\((\w+)\)|(\w+))")  # $$ in a Compose file is $
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_TEMPLATE = re.compile(r"\{\{-?\s*[.$]?(Values|Release|Chart|include|toYaml|if|range|with)\b")
MAX_MANIFEST = 4_000_000  # characters
MOST_FILLED = 20_000  # characters that variables add to a word
MOST_NESTED = 200  # variables whose values may have variables
_ENDS = ("&&", "||", ";", "|", "&")


class ServerLaunch(NamedTuple):
    """A server's engine, its version where an image says it, its flags, and the variables that it is started with."""

    engine: str
    version: str
    flags: list[str]
    environment: dict[str, str]


def is_server_command(text: str) -> bool:
    """Whether a model's name is none, but a command or a manifest: ``is_server_command("vllm serve Qwen/Qwen3-8B")``"""
    shell = bool(_LAUNCHER.search(text) or _PROGRAM.match(text)) or ("vllm-openai" in text and " " in text.strip())
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
        elif text[at : at + 2] in ("${", "$(") or (char == "{" and (not started or token.endswith("="))):
            end = _bracket_end(text, at + (char == "$"))
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


def _bracket_end(text: str, at: int) -> int:
    """Where the bracket that opens here is closed again: ``_bracket_end("{a {b}} c", 0)  # 7``"""
    depth, pair = 0, {"{": 1, "}": -1} if text[at] == "{" else {"(": 1, ")": -1}
    for end in range(at, len(text)):
        depth += pair.get(text[end], 0)
        if not depth:
            return end + 1
    return len(text)


def _located(tokens: Sequence[str], environment: Mapping[str, str]) -> ServerLaunch | None:
    """The server among the words of a command: behind variables, docker, mpirun, a shell, or nothing at all."""
    known = dict(environment)
    version, own = "", 0  # of the last image, and where its flags begin if its entry point is `vllm serve`
    for at, token in enumerate(tokens):
        assigned = _ASSIGNMENT.fullmatch(token)
        if assigned and not token.startswith("-"):
            known[assigned[1]] = _filled(assigned[2], known) if len(known) < MOST_NESTED else assigned[2]
        if " " in token and _LAUNCHER.search(token) and tokens[max(at - 1, 0)] not in ("echo", "printf"):  # bash -c "…"
            inner = _located(split_command(token), known)
            if inner is not None:
                return inner._replace(version=inner.version or version)
        word = _filled(token, known)
        image = next((engine for engine, pattern in _IMAGES.items() if _is_image(word, pattern)), "")
        tag = _TAG.search(word) if image else None
        version = tag[1] if tag else version
        following = os.path.basename(tokens[at + 1]) if at + 1 < len(tokens) else ""
        if image == "vllm" and not _OTHER_PROGRAMS.fullmatch(following):
            own = at + 1 + (following == "serve")
        engine, start = _started(tokens, at)
        if engine:
            return ServerLaunch(engine, version, _flags(tokens[start:], known), known)
    return ServerLaunch("vllm", version, _flags(tokens[own:], known), known) if own else None


def _flags(tokens: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Words up to the end of a command, with what its variables stand for; one without quotes may be several words."""
    flags: list[str] = []
    for token in tokens:
        word = _filled(token, known)
        if word in _ENDS or re.match(r"\d?>", word):
            break
        is_variable = token.startswith("$") and _VARIABLE.fullmatch(token) is not None and word != token
        flags += split_command(word) if is_variable and (not word or word.startswith("-")) else [word]
    return flags


def _is_image(token: str, pattern: str) -> bool:
    return bool(re.search(pattern, token)) and ("/" in token or ":" in token) and not token.startswith(("-", ".", "/"))


def _started(tokens: Sequence[str], at: int) -> tuple[str, int]:
    """The engine that a word starts, and where its flags begin: ``_started(["vllm", "serve"], 0)  # ('vllm', 2)``"""
    name, following = os.path.basename(tokens[at]), tokens[at + 1] if at + 1 < len(tokens) else ""
    if name in ("vllm", "sglang") and following == "serve":
        return name, at + 2
    if name == "trtllm-serve" and following not in _NO_SERVERS:
        return "trtllm", at + (2 if following == "serve" else 1)
    if tokens[at] == "-m" and following.startswith("vllm.entrypoints"):
        return "vllm", at + 2
    if tokens[at] == "-m" and following == "sglang.launch_server":
        return "sglang", at + 2
    return "", 0


def _filled(word: str, known: Mapping[str, str]) -> str:
    """A word with the variables that the command itself sets, and defaults: ``_filled("${TP:-2}", {})  # '2'``"""
    room = MOST_FILLED

    def value(match: re.Match[str]) -> str:
        nonlocal room
        sign, other = match[2] or "", match[3] or ""
        given = known.get(match[1] or match[4] or match[5])
        if sign.endswith("+"):
            given = other if given else ""
        elif given is None or (not given and sign.startswith(":")):
            given = other if sign.endswith(("-", "=")) else match[0]
        room -= len(given)
        return given if room >= 0 else ""

    filled = word
    for _ in range(3 if word.count("${") > 1 else 1):  # a default may have a variable with a default
        filled = _VARIABLE.sub(value, filled) if "$" in filled else filled
    return filled if room >= 0 else word


# ------------------------------------------------------------------ Compose and Kubernetes


def _from_manifest(text: str) -> ServerLaunch:
    manifest = input_text(text)
    if manifest is None:
        raise BadFile(f"no file {abbreviate(text)}", field="model")
    if len(manifest) > MAX_MANIFEST:
        raise BadFile(f"{text} has more than {MAX_MANIFEST:,} characters, which no such file has", field="model")
    if _TEMPLATE.search(manifest):
        raise BadFile(f"{text} is a template of Helm: write it out first, with helm template", field="model")
    launches = []
    seen: set[int] = set()
    for document in read_yaml(manifest, text):
        for container in _containers(document, seen):
            environment = _environment(container)
            image = _filled(str(container.get("image") or ""), environment)
            parts = [_argv(container.get(key)) for key in ("entrypoint", "command", "args")]
            launch = _located([image, *(word for part in parts for word in part)], environment)
            launches += [launch] if launch is not None else []
    if not launches:
        raise BadFile(f"{text} has no container that starts vLLM, SGLang or TensorRT-LLM", field="model")
    return next((one for one in launches if one.flags and "--headless" not in one.flags), launches[0])


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
        given = [f"{key}={value}" for key, value in given.items() if value is not None]
    known: dict[str, str] = {}
    pairs = [
        (one.get("name"), one.get("value", "")) if isinstance(one, dict) else str(one).split("=", 1)
        for one in (given if isinstance(given, list) else ())
    ]
    for pair in pairs:
        if len(pair) == 2:
            name, value = map(str, pair)
            known[name] = _filled(value, known) if len(known) < MOST_NESTED else value
    return known
