"""Requests and answers of the server, as OpenAPI shows them."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Answer", "Guarantee", "KeyPrivacy", "Privacy", "Question", "RefusalBody", "describe_refusals"]

_REFUSALS = {
    401: "There is no API key, or it is not known.",
    413: "The request is too large.",
    422: "The request is malformed, or the model cannot take its input.",
    429: "The privacy budget is spent, or there were too many requests: then `Retry-After` says when to come again.",
    503: "The ledger cannot be written or read, or the worker does not come back.",
    504: "There was no answer in time; under the same `Idempotency-Key` it comes if it was given after all.",
}


class Question(BaseModel):
    """One query."""

    model_config = ConfigDict(extra="forbid")

    input: Any = Field(
        description="What the model takes for one record: nested lists of numbers without the batch dimension.",
        examples=[[0.5, 1.0, 0.25]],
    )


class Answer(BaseModel):
    """A private answer. Nothing else of an answer is meant for users."""

    label: int = Field(description="The private label.")


class RefusalBody(BaseModel):
    """Why there is no answer; a refusal costs nothing."""

    detail: str


class Guarantee(BaseModel):
    """One bound that holds for all answers so far."""

    name: str
    value: float
    unit: str
    meaning: str


class KeyPrivacy(BaseModel):
    """The cost of the answers given to one API key."""

    name: str
    answers: int
    spent: float = Field(description="In nats.")
    budget: float | None = Field(description="In nats; null for the budget of all answers.")
    remaining: float | None


class Privacy(BaseModel):
    """The cost of all answers together, and the bound on guessing that follows."""

    answers: int = Field(description="Number of answers, free ones included.")
    spent: float = Field(description="Mutual information in nats.")
    budget: float | None
    remaining: float | None = Field(description="What may still be spent; null where nothing limits it.")
    membership_success_bound: float = Field(
        description="Largest probability with which anyone who saw all answers tells whether a record was used."
    )
    guarantees: list[Guarantee]
    conditions: list[str]
    key: KeyPrivacy | None = Field(description="The share of the key that asks.")


def describe_refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's description of refusals."""
    return {status: {"model": RefusalBody, "description": _REFUSALS[status]} for status in statuses}
