"""The part of SARIF 2.1.0 that we write, as a JSON schema: names, types, values and what must be there."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["SCHEMA"]

_TEXT: Final = {"type": "string"}
_PLACE: Final = {"type": "integer", "minimum": -1}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object with these members and no others. SARIF allows a property bag everywhere."""
    bag = {"type": "object"}
    return {
        "type": "object",
        "properties": {**properties, "properties": bag},
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


_MESSAGE: Final = _object(("text",), text=_TEXT)
_LEVEL: Final = {"enum": ["none", "note", "warning", "error"]}
_RULE: Final = _object(
    ("id",),
    id=_TEXT,
    name=_TEXT,
    shortDescription=_MESSAGE,
    defaultConfiguration=_object(level=_LEVEL),
)
_ARTIFACT: Final = _object(uri={"type": "string", "format": "uri-reference"}, uriBaseId=_TEXT)
_LOCATION: Final = _object(
    physicalLocation=_object(
        ("artifactLocation",), artifactLocation=_ARTIFACT, region=_object(startLine={"type": "integer", "minimum": 1})
    )
)
_RESULT: Final = _object(
    ("message",),
    ruleId=_TEXT,
    ruleIndex=_PLACE,
    level=_LEVEL,
    kind={"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
    message=_MESSAGE,
    locations=_list(_LOCATION),
    partialFingerprints={"type": "object", "additionalProperties": _TEXT},
    suppressions=_list(
        _object(("kind",), kind={"enum": ["inSource", "external"]}, justification=_TEXT), uniqueItems=True
    ),
)
_NOTIFICATION: Final = _object(
    ("message",), level=_LEVEL, message=_MESSAGE, associatedRule=_object(id=_TEXT, index=_PLACE)
)
_RUN: Final = _object(
    ("tool",),
    tool=_object(
        ("driver",), driver=_object(("name",), name=_TEXT, version=_TEXT, rules=_list(_RULE, uniqueItems=True))
    ),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    invocations=_list(
        _object(
            ("executionSuccessful",),
            executionSuccessful={"type": "boolean"},
            toolExecutionNotifications=_list(_NOTIFICATION),
        )
    ),
    results=_list(_RESULT),
)
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": _list(_RUN, minItems=1),
    },
    "required": ["version", "runs"],
    "additionalProperties": False,
}
