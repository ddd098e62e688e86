"""OpenAI's API as vLLM speaks it: requests checked, answers and errors in its words.

    completion = read_request(b'{"prompt": "Hello", "max_tokens": 8}', "completions", server)
    completion.prompts, completion.max_tokens

Shapes, defaults and sentences are those of vLLM v0.25.1: protocol.py and serving.py of vllm/entrypoints/openai/
completion and chat_completion, vllm/renderers/params.py (length of prompts), vllm/entrypoints/serve/utils (errors).
"""

from __future__ import annotations

import time
import uuid
from typing import Any, NamedTuple

import msgspec

from ...base.errors import abbreviate
from ..answers import JsonAnswer
from .filler import PromptTokens, tokens_of

MOST_CHOICES = 1024  # answers to one HTTP request: prompts × n
MOST_MESSAGES = 100_000  # of one HTTP request, and parts of them
MOST_TOKENS = 1_000_000  # of the prompts of one HTTP request: all streams wait while they are counted
COMPLETION_TOKENS = 16  # max_tokens of a completion that says nothing


class RefusedRequest(Exception):
    """A request that is not answered: ``RefusedRequest("max_tokens must be at least 1, got 0.", "max_tokens")``"""

    def __init__(self, sentence: str, param: str | None = None, status: int = 400, kind: str = "") -> None:
        super().__init__(sentence)
        self.answer = error_answer(status, sentence, param, kind)


_KINDS = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 405: "MethodNotAllowedError"}
_KINDS |= {408: "RequestTimeoutError", 413: "BadRequestError", 503: "ServiceUnavailableError"}


def error_answer(status: int, sentence: str, param: str | None = None, kind: str = "") -> JsonAnswer:
    """``error_answer(404, "The model `x` does not exist.", "model").body  # b'{"error":{"message":…'``"""
    kind = kind or _KINDS.get(status, "InternalServerError")
    error = {"message": sentence, "type": kind, "param": param, "code": status}
    return JsonAnswer(status, msgspec.json.encode({"error": error}))


class Served(NamedTuple):
    """What requests are checked against."""

    names: tuple[str, ...]  # of the model; answers have the first one
    max_model_len: int


class StreamOptions(msgspec.Struct):
    """What a stream tells beside its tokens."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """The body of both kinds of request; keys that change nothing here are accepted and ignored, as vLLM does."""

    model: str | None = None
    prompt: Any = None
    messages: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    priority: int | None = None
    echo: bool | None = None
    logprobs: Any = None


class Generation(NamedTuple):
    """A request that can be answered."""

    api: str  # completions or chat
    prompts: list[PromptTokens]
    n: int
    max_tokens: int | None  # None: until the answer ends by itself, or the model's length does
    min_tokens: int
    ignore_eos: bool
    seed: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    priority: int


def read_request(body: bytes, api: str, served: Served) -> Generation:
    """Check a body, and count the tokens of its prompts."""
    try:
        request = msgspec.json.decode(body, type=GenerationRequest)
    except msgspec.ValidationError as error:
        raise RefusedRequest(_sentence(str(error)), _param(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedRequest(f"the request is not valid JSON: {abbreviate(str(error))}") from None
    if request.model and request.model not in served.names:
        raise RefusedRequest(f"The model `{request.model[:100]}` does not exist.", "model", 404)
    max_tokens = _checked_limits(request, api)
    longest = served.max_model_len
    prompts = _chat_prompt(request, longest) if api == "chat" else _prompts(request.prompt, longest)
    for prompt in prompts:
        _check_length(prompt, max_tokens, longest)
    n = 1 if request.n is None else request.n
    if len(prompts) * n > MOST_CHOICES:
        raise RefusedRequest(
            f"one request has at most {MOST_CHOICES:,} answers here (prompts × n), not {len(prompts) * n:,}"
        )
    options = request.stream_options or StreamOptions()
    return Generation(
        api=api,
        prompts=prompts,
        n=n,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        seed=request.seed or 0,
        stream=bool(request.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        priority=max(-(2**31), min(request.priority or 0, 2**31)),
    )


def _checked_limits(request: GenerationRequest, api: str) -> int | None:
    """The most tokens of an answer; None where the request does not say."""
    name = "max_completion_tokens" if api == "chat" and request.max_completion_tokens is not None else "max_tokens"
    max_tokens: int | None = getattr(request, name)
    if max_tokens is None and api == "completions":
        max_tokens = COMPLETION_TOKENS
    least, n = request.min_tokens or 0, 1 if request.n is None else request.n
    if max_tokens is not None and max_tokens < 1:
        raise RefusedRequest(f"{name} must be at least 1, got {max_tokens}.", name)
    if least < 0:
        raise RefusedRequest(f"min_tokens must be greater than or equal to 0, got {least}.", "min_tokens")
    if max_tokens is not None and least > max_tokens:
        raise RefusedRequest(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {least}.", "min_tokens"
        )
    if n < 1:
        raise RefusedRequest(f"n must be at least 1, got {n}.", "n")
    if request.stream_options is not None and not request.stream:
        raise RefusedRequest("Stream options can only be defined when `stream=True`.", "stream_options")
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise RefusedRequest(f"temperature must be in [0, 2], got {request.temperature}.", "temperature")
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise RefusedRequest(f"top_p must be in (0, 1], got {request.top_p}.", "top_p")
    for key in ("echo", "logprobs"):
        if getattr(request, key) not in (None, False):
            raise RefusedRequest(f"this is a mock: it has no tokens of the model, so it cannot give `{key}`", key)
    return max_tokens


def _prompts(given: Any, longest: int) -> list[PromptTokens]:
    """A text, token ids, or a list of either."""
    if isinstance(given, str):
        return [PromptTokens.of_text(given, longest)]
    if isinstance(given, list) and given:
        if _are_ids(given):
            return [PromptTokens(given)]
        if len(given) > MOST_CHOICES and isinstance(given[0], str | list):
            raise RefusedRequest(f"one request has at most {MOST_CHOICES:,} prompts here, not {len(given):,}", "prompt")
        if all(isinstance(one, str) or (isinstance(one, list) and one and _are_ids(one)) for one in given):
            prompts, room = [], max(longest, MOST_TOKENS)
            for one in given:
                prompts.append(PromptTokens.of_text(one, longest) if isinstance(one, str) else PromptTokens(one))
                room -= prompts[-1].num_tokens
                if room < 0:
                    raise RefusedRequest(f"one request has at most {MOST_TOKENS:,} prompt tokens here", "prompt")
            return prompts
    if given is None or given == []:
        raise RefusedRequest("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    raise RefusedRequest("prompt must be a text, a list of token ids that are 0 or more, or a list of either", "prompt")


def _are_ids(given: list[Any]) -> bool:
    return set(map(type, given)) == {int} and min(given) >= 0


def _chat_prompt(request: GenerationRequest, longest: int) -> list[PromptTokens]:
    """The messages with four tokens around each, as chat templates have them, and three that begin the answer."""
    messages = request.messages
    if not isinstance(messages, list) or not messages or len(messages) > MOST_MESSAGES:
        raise RefusedRequest(f"messages must be a list of 1 to {MOST_MESSAGES:,} messages", "messages")
    tokens: list[str] = []
    num_parts = 0
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RefusedRequest(
                'each of the messages must be an object such as {"role": "user", "content": "…"}', "messages"
            )
        tokens += ["<|start|>", message["role"], "<|message|>"]
        texts = _texts(message.get("content"))
        num_parts += len(texts)
        if num_parts > MOST_MESSAGES:
            raise RefusedRequest(f"messages may have {MOST_MESSAGES:,} parts here", "messages")
        for text in texts:
            if len(tokens) <= longest:
                tokens += tokens_of(text, longest - len(tokens))
        tokens.append("<|end|>")
    return [PromptTokens([*tokens, "<|start|>", "assistant", "<|message|>"])]


def _texts(content: Any) -> list[str]:
    """The texts of a message's content: a text, nothing, or parts."""
    if content is None or isinstance(content, str):
        return [content or ""]
    if not isinstance(content, list) or len(content) > MOST_MESSAGES:
        raise RefusedRequest(f"content must be a text or a list of up to {MOST_MESSAGES:,} parts", "messages")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
            raise RefusedRequest(f"this mock reads parts of type text, not {abbreviate(kind)}", "messages")
        texts.append(part["text"])
    return texts


def _check_length(prompt: PromptTokens, max_tokens: int | None, longest: int) -> None:
    count, wanted = prompt.num_tokens, max_tokens or 0
    if not count:
        raise RefusedRequest("The decoder prompt cannot be empty")
    if count + max(wanted, 1) <= longest:
        return
    if count > longest - wanted and (wanted or count > longest):
        some = "at least " if count > longest else ""
        raise RefusedRequest(
            f"This model's maximum context length is {longest} tokens. However, you requested {wanted} output tokens "
            f"and your prompt contains {some}{count} input tokens, for a total of {some}{count + wanted} tokens. "
            "Please reduce the length of the input prompt or the number of requested output tokens.",
            "input_tokens",
        )
    raise RefusedRequest(
        f"The decoder prompt (length {count}) plus the number of requested output tokens (at least 1) is longer than "
        f"the maximum model length of {longest}. Make sure that `max_model_len` is no smaller than the number of text "
        "tokens (prompt + requested output tokens)."
    )


def _sentence(text: str) -> str:
    """``Expected `int`, got `str` - at `$.max_tokens` `` as a sentence about the key."""
    what, _, where = text.partition(" - at `$")
    key = where.rstrip("`").lstrip(".")
    return f"{key}: {what[:1].lower()}{what[1:]}" if key else f"the request: {what[:1].lower()}{what[1:]}"


def _param(text: str) -> str | None:
    where = text.partition(" - at `$.")[2].rstrip("`")
    return where.partition(".")[0] or None


# ------------------------------------------------------------------ answers


class Shapes:
    """The JSON of one request's answers: ``Shapes("chat", "llama-3.1-8b").piece(0, " the")``"""

    def __init__(self, api: str, model: str) -> None:
        self.chat = api == "chat"
        self.head = {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if self.chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        stream_head = {**self.head, "object": "chat.completion.chunk"} if self.chat else self.head
        self.event_head = b"data: " + msgspec.json.encode(stream_head)[:-1]
        self.opening = b'"delta":{"content":"' if self.chat else b'"text":"'
        self.closing = b'"}' if self.chat else b'"'

    def begin(self, index: int) -> bytes:
        """The event that names the role of a chat's answer."""
        delta = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        return b'%b,"choices":[{"index":%d,%b' % (self.event_head, index, delta)

    def piece(self, index: int, text: str, reason: str | None = None, usage: dict[str, Any] | None = None) -> bytes:
        """An event with words, which need no escapes, and why it is the last one."""
        ended = b'"%b"' % reason.encode() if reason else b"null"
        tail = b"}]" if usage is None else b'}],"usage":%b' % msgspec.json.encode(usage)
        return b'%b,"choices":[{"index":%d,%b%b%b,"logprobs":null,"finish_reason":%b%b}\n\n' % (
            self.event_head,
            index,
            self.opening,
            text.encode(),
            self.closing,
            ended,
            tail,
        )

    def usage_event(self, usage: dict[str, Any]) -> bytes:
        """The event after the last words."""
        return b'%b,"choices":[],"usage":%b}\n\n' % (self.event_head, msgspec.json.encode(usage))

    def whole(self, texts: list[tuple[str, str]], usage: dict[str, Any]) -> bytes:
        """The answer of a request that does not stream: texts with their reasons to end."""
        choices = [
            {"index": k, **self._said(text), "logprobs": None, "finish_reason": reason, "stop_reason": None}
            for k, (text, reason) in enumerate(texts)
        ]
        return msgspec.json.encode({**self.head, "choices": choices, "usage": usage})

    def _said(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text.lstrip()}} if self.chat else {"text": text}


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> dict[str, Any]:
    """``usage_of(512, 128)``; with what the prefix cache had, where the server reports it"""
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return usage
