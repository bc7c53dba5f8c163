"""What a server refuses, what it repeats, and what it says about privacy."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Server, exchange, recorded, serving
from toy_server import BUDGET, BUG, SLOW

from lightning_pac.accountants import membership_success_bound
from lightning_pac.serve import APIKeys

REQUESTS_AN_HOUR = 30


class Service:
    """A server with keys, and what it has answered so far."""

    def __init__(self, server: Server | None, folder: Path, keys: dict[str, str]) -> None:
        self.server, self.folder, self.keys = server, folder, keys

    def ask(self, question: Any, key: str = "alice", **headers: str) -> tuple[int, Any]:
        return self.server.ask(question, Authorization=f"Bearer {self.keys[key]}", **headers)

    def privacy(self, key: str = "watcher") -> Any:
        status, content = self.server.get("/privacy", {"Authorization": f"Bearer {self.keys[key]}"})
        assert status == 200, content
        return content


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    stored = APIKeys(folder / "keys.json")
    budgets = {"alice": None, "bob": None, "poor": 2.5 * BUDGET, "hasty": None, "watcher": None}
    keys = {name: stored.add(name, budget) for name, budget in budgets.items()}
    options = {"max_request_bytes": 1000, "rate_limit": f"{REQUESTS_AN_HOUR}/hour", "budget": 100 * BUDGET}
    with serving(folder, options) as server:
        yield Service(server, folder, keys)


@pytest.fixture
def costs_nothing(service: Service) -> Iterator[None]:
    before = recorded(service.folder)
    yield
    assert recorded(service.folder) == before


@pytest.mark.usefixtures("costs_nothing")
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer guess"}, {"Authorization": "Bearer "}, {"X_API_Key": "guess"}, "basic", "hash"],
)
def test_nobody_asks_without_a_key(service: Service, headers: Any) -> None:
    if headers == "basic":
        headers = {"Authorization": f"Basic {service.keys['alice']}"}
    if headers == "hash":
        headers = {"Authorization": f"Bearer {next(iter(APIKeys(service.folder / 'keys.json'))).sha256}"}
    status, content = service.server.ask(1, **headers)
    assert status == 401
    assert "Authorization: Bearer KEY" in content["detail"]
    assert service.server.get("/privacy")[0] == 401


@pytest.mark.usefixtures("costs_nothing")
@pytest.mark.parametrize("chunked", [False, True])
def test_an_oversized_request_is_refused(service: Service, chunked: bool) -> None:
    body = json.dumps({"input": [0] * 1000})
    sent = (part.encode() for part in (body[:500], body[500:])) if chunked else body
    status, _ = service.server.post(sent, Authorization=f"Bearer {service.keys['alice']}")
    assert status == 413


@pytest.mark.usefixtures("costs_nothing")
@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ("", {}),
        ("{", {}),
        ("[1]", {}),
        ("{}", {}),
        ('{"input": 1, "budget": 1}', {}),
        ('{"input": ' + "[" * 450 + "]" * 450 + "}", {}),
        ('{"input": "words"}', {}),
        ('{"input": null}', {}),
        ('{"input": [1, [2]]}', {}),
        ('{"input": NaN}', {}),
        (json.dumps({"input": BUG}), {}),
        ('{"input": 1}', {"Content_Type": "text/plain"}),
        ('{"input": 1}', {"Idempotency_Key": "x" * 201}),
        ('{"input": 1}', {"Host": "evil.example"}),
        ("\xff", {}),
    ],
)
def test_a_malformed_request_is_refused(service: Service, body: str, headers: dict[str, str]) -> None:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    named = {"Content-Type": "application/json", "Authorization": f"Bearer {service.keys['bob']}", **named}
    status, _, _ = exchange(service.server.connect(), "POST", "/predict", body, named)
    assert status in (400, 422)


def test_a_retry_gets_the_recorded_answer_and_nobody_elses(service: Service) -> None:
    status, first = service.ask(100, Idempotency_Key="order 1")
    assert status == 200
    spent = service.privacy()["spent"]
    for _ in range(5):
        assert service.ask(100, Idempotency_Key="order 1") == (200, first)
    assert service.privacy()["spent"] == spent
    # Another owner or another question under the same name is another request.
    assert service.ask(101, Idempotency_Key="order 1")[0] == 200
    assert service.ask(102, "bob", Idempotency_Key="order 1")[0] == 200
    assert service.privacy()["spent"] == spent + 2 * BUDGET


def test_a_key_has_its_own_budget_inside_the_total(service: Service) -> None:
    before = service.privacy()
    answers = [service.ask(200 + number, "poor", Idempotency_Key=str(number)) for number in range(4)]
    assert [status for status, _ in answers] == [200, 200, 429, 429]
    assert "API key 'poor' has" in answers[2][1]["detail"]
    assert service.ask(200, "poor", Idempotency_Key="0") == answers[0]
    after = service.privacy("poor")
    assert after["spent"] == before["spent"] + 2 * BUDGET
    assert after["key"] == {
        "name": "poor",
        "answers": 2,
        "spent": 2 * BUDGET,
        "budget": 2.5 * BUDGET,
        "remaining": 0.5 * BUDGET,
    }
    assert service.ask(300)[0] == 200


def test_requests_that_come_too_fast_are_refused_and_cost_nothing(service: Service) -> None:
    assert service.ask(400, "hasty", Idempotency_Key="one")[0] == 200
    before = recorded(service.folder)
    results = [service.ask(400, "hasty", Idempotency_Key="one") for _ in range(REQUESTS_AN_HOUR + 5)]
    assert [status for status, _ in results].count(429) == 6
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {service.keys['hasty']}"}
    status, content, named = exchange(service.server.connect(), "POST", "/predict", '{"input": 401}', headers)
    assert status == 429
    assert f"More than {REQUESTS_AN_HOUR} per 1 hour" in content["detail"]
    assert 3000 < int(named["retry-after"]) <= 3600
    assert recorded(service.folder) == before
    assert service.ask(500)[0] == 200  # others are not held up


def test_the_privacy_page_says_what_the_ledger_says(service: Service) -> None:
    service.ask(600)
    page = service.privacy()
    assert page["answers"] == len(recorded(service.folder))
    assert page["spent"] + page["remaining"] == page["budget"] == 100 * BUDGET
    assert page["membership_success_bound"] == membership_success_bound(page["spent"], 0.5)
    assert page["guarantees"][0]["value"] == page["membership_success_bound"]
    assert any("never drawn again" in condition for condition in page["conditions"])
    assert page["key"]["name"] == "watcher"
    assert page["key"]["spent"] == 0


def test_the_interface_describes_itself_to_those_who_may_ask(service: Service) -> None:
    assert service.server.get("/health") == (200, "ok")
    key = {"Authorization": f"Bearer {service.keys['watcher']}"}
    assert service.server.get("/docs", key)[0] == 200
    status, interface = service.server.get("/openapi.json", key)
    assert status == 200
    assert set(interface["paths"]) == {"/predict", "/privacy", "/health"}
    operation = interface["paths"]["/predict"]["post"]
    assert {"200", "401", "413", "422", "429", "503"} <= set(operation["responses"])
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Question")
    assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/Answer")
    assert [parameter["name"].lower() for parameter in operation["parameters"]] == ["idempotency-key"]
    assert operation["security"] == [{"HTTPBearer": []}]
    assert "/privacy" in interface["paths"]


def test_what_waits_too_long_or_is_past_the_budget_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, {"budget": 4 * BUDGET, "timeout": 1.0, "max_batch_size": 1}) as server:
        late: list[int] = []
        slow = threading.Thread(target=lambda: late.append(server.ask(SLOW, Idempotency_Key="slow")[0]))
        slow.start()
        time.sleep(0.3)
        assert server.ask(100)[0] == 504
        slow.join()
        assert late == [504]
        # What came too late is on record, and can be had; what only waited is not.
        deadline = time.monotonic() + 20
        while server.ask(SLOW, Idempotency_Key="slow")[0] != 200:
            assert time.monotonic() < deadline
        results = [server.ask(number) for number in range(1, 6)]
        assert [status for status, _ in results] == [200, 200, 200, 429, 429]
        assert "0 are left for all answers together" in results[4][1]["detail"]
        assert server.get("/privacy")[1]["remaining"] == 0
    assert set(recorded(tmp_path)) == {SLOW, 1, 2, 3}


def test_health_says_why_nothing_is_answered_until_the_ledger_can_be_written(tmp_path: Path) -> None:
    with serving(tmp_path, flaw="--fill") as server:
        assert server.ask(1, Idempotency_Key="one")[0] == 200
        assert server.get("/health") == (200, "ok")
        (tmp_path / "full").touch()
        assert server.ask(2)[0] == 503
        status, content = server.get("/health")
        assert status == 503
        assert "Nothing is answered since 20" in content["detail"]
        assert "responses.db cannot be opened or written" in content["detail"]
        assert str(tmp_path) not in content["detail"]
        assert server.ask(1, Idempotency_Key="one")[0] == 200
        time.sleep(2.5)  # the worker tries again by itself, and fails
        assert server.get("/health")[0] == 503
        (tmp_path / "full").unlink()
        deadline = time.monotonic() + 20
        while server.get("/health")[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert server.get("/health") == (200, "ok")  # nobody has asked anything meanwhile
        assert server.ask(2)[0] == 200
    assert set(recorded(tmp_path)) == {1, 2}


def test_keys_come_and_go_while_the_server_runs(tmp_path: Path) -> None:
    keys = APIKeys(tmp_path / "keys.json")
    service = Service(None, tmp_path, {"alice": keys.add("alice"), "bob": keys.add("bob", BUDGET)})
    with serving(tmp_path) as service.server:
        assert [service.ask(number, "bob")[0] for number in (1, 2)] == [200, 429]
        keys.set_budget("bob", 2 * BUDGET)
        assert [service.ask(number, "bob")[0] for number in (2, 3)] == [200, 429]
        keys.remove("alice")
        assert service.ask(4)[0] == 401
        service.keys["alice"] = keys.add("alice")
        service.keys["carol"] = keys.add("carol", BUDGET)
        assert [service.ask(number, name)[0] for number, name in ((4, "alice"), (5, "carol"), (6, "carol"))] == [
            200,
            200,
            429,
        ]
        kept = keys.path.read_text()
        keys.path.write_text("{")
        assert service.ask(7)[0] == 503
        keys.path.unlink()
        assert service.ask(7)[0] == 401
        keys.path.write_text(kept)
        assert service.ask(7)[0] == 200
    assert set(recorded(tmp_path)) == {1, 2, 4, 5, 7}
