"""Prometheus' configuration and rules, and Grafana's dashboard: each name and expression in them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from metrics.catalogue import CATALOGUE
from tests.deploy.files import DEPLOY, load

PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "tensorbus.json"
OURS = re.compile(r"\b(?:tensorbus|nv)_[a-z_]+\b")


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    """By panel; with values in place of Grafana's variables."""
    for panel in panels():
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$model", ".*")


def rules() -> list[dict[str, Any]]:
    return [rule for group in load(PROMETHEUS / "rules.yml")["groups"] for rule in group["rules"]]


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROMETHEUS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_is_in_the_catalogue() -> None:
    known = {family.name for family in CATALOGUE}
    used = {name for _, expression in dashboard_expressions() for name in OURS.findall(expression)}
    used |= {name for rule in rules() for name in OURS.findall(rule["expr"])}
    assert used and used <= known, used - known


def test_counters_are_shown_as_rates_and_gauges_as_they_are() -> None:
    kinds = {family.name: family.kind for family in CATALOGUE}
    everything = [*dashboard_expressions(), *((rule["alert"], rule["expr"]) for rule in rules())]
    for where, expression in everything:
        rated = set(re.findall(r"(?:rate|increase)\(([a-z_]+)", expression))
        counters = {name for name in OURS.findall(expression) if kinds[name] == "counter"}
        assert rated == counters, (where, expression)


def test_the_configuration_is_one(promtool: str) -> None:
    run(promtool, "check", "config", "prometheus.yml")
    run(promtool, "check", "rules", "rules.yml")


def test_alerts_fire_when_they_should_and_only_then(promtool: str) -> None:
    run(promtool, "test", "rules", "rules_test.yml")


def test_every_alert_is_tested_both_ways() -> None:
    cases = [case for test in load(PROMETHEUS / "rules_test.yml")["tests"] for case in test["alert_rule_test"]]
    alerts = {rule["alert"] for rule in rules()}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == alerts


def test_every_expression_of_the_dashboard_can_be_parsed(promtool: str, tmp_path: Path) -> None:
    """As recording rules, since every promtool can check those."""
    recorded = [{"record": f"panel:{number}", "expr": each} for number, (_, each) in enumerate(dashboard_expressions())]
    path = tmp_path / "dashboard.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    run(promtool, "check", "rules", path)


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """What is in the first document and not the same in the second."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after[key], f"{path}/{key}") if key in after else [f"{path}/{key}"]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from lost(*pair, f"{path}/{number}")
    elif before != after:
        yield path


def test_grafana_knows_every_key_of_the_dashboard() -> None:
    """By the types that Grafana publishes: what it does not know is lost on the way through them."""
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard())))
    assert list(lost(dashboard(), again)) == []


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_the_dashboard_asks_the_data_source_that_is_provisioned() -> None:
    (source,) = load(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    (variable,) = [each for each in dashboard()["templating"]["list"] if each["type"] == "datasource"]
    assert variable["current"]["value"] == source["uid"] and variable["query"] == source["type"]
    assert {panel["datasource"]["uid"] for panel in panels() if panel["type"] != "row"} == {"${datasource}"}
    (provider,) = load(DEPLOY / "grafana/provisioning/dashboards/tensorbus.yml")["providers"]
    mounts = load(DEPLOY / "compose.yaml")["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in mounts
