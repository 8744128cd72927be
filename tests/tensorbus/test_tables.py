from protocol.signature import IndexEntry
from tensorbus.settings import parse_serve
from tensorbus.tables import backends_table, models_table, options_table, repository_agents_table, table


def test_models_are_listed_with_their_state_and_the_lines_of_their_reason() -> None:
    index = [
        IndexEntry("bad", 1, "UNAVAILABLE", "Internal: ValueError: x\n\nAt:\n  model.py(1): <module>\n"),
        IndexEntry("m", 12, "READY"),
        IndexEntry("none", -1, ""),
    ]
    assert models_table(index) == (
        "+-------+---------+----------------------------------------+\n"
        "| Model | Version | Status                                 |\n"
        "+-------+---------+----------------------------------------+\n"
        "| bad   | 1       | UNAVAILABLE: Internal: ValueError: x   |\n"
        "|       |         |                                        |\n"
        "|       |         | At:                                    |\n"
        "|       |         |   model.py(1): <module>                |\n"
        "| m     | 12      | READY                                  |\n"
        "| none  | -       | Not loaded: No model version was found |\n"
        "+-------+---------+----------------------------------------+\n"
    )


def test_an_empty_table_has_its_headings() -> None:
    assert repository_agents_table() == (
        "+------------------+------+\n"
        "| Repository Agent | Path |\n"
        "+------------------+------+\n"
        "+------------------+------+\n"
    )


def test_options_have_tritons_names() -> None:
    settings = parse_serve(["--model-repository=/a", "--model-store=/b", "--exit-timeout-secs=5", "--id=x"])
    rows = [line.split("|")[1:3] for line in options_table(settings, "2.0", ["binary", "logging"]).splitlines()[3:-1]]
    assert [(name.strip(), value.strip()) for name, value in rows] == [
        ("server_id", "x"),
        ("server_version", "2.0"),
        ("server_extensions", "binary logging"),
        ("model_repository_path[0]", "/a"),
        ("model_repository_path[1]", "/b"),
        ("model_control_mode", "MODE_NONE"),
        ("strict_model_config", "0"),
        ("model_config_name", ""),
        ("rate_limit", "OFF"),
        ("pinned_memory_pool_byte_size", "268435456"),
        ("min_supported_compute_capability", "6.0"),
        ("strict_readiness", "1"),
        ("exit_timeout", "5"),
        ("cache_enabled", "0"),
    ]


def test_the_options_say_how_executions_are_limited() -> None:
    settings = parse_serve(
        ["--rate-limit=execution_count", "--rate-limit-resource=R1:2", "--rate-limit-resource=R2:3:1"]
    )
    rows = [line for line in options_table(settings, "2.0", []).splitlines() if "rate_limit" in line]
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in rows] == [
        ["rate_limit", "EXEC_COUNT"],
        ["rate_limit_resource[0]", '{"name":"r1", "count":2 "device":-1}'],
        ["rate_limit_resource[1]", '{"name":"r2", "count":3 "device":1}'],
    ]


def test_a_backends_row_shows_what_it_was_told() -> None:
    settings = parse_serve(["--backend-config=python,thread-pool-size=3", "--backend-config=default-max-batch-size=8"])
    row = backends_table({"python": "/stub"}, settings).splitlines()[3]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "python",
        "/stub",
        '{"cmdline":{"auto-complete-config":"true","backend-directory":"/opt/tritonserver/backends",'
        '"default-max-batch-size":"8","thread-pool-size":"3"}}',
    ]


def test_wide_columns_are_broken_to_share_what_narrow_ones_leave() -> None:
    assert table(("A", "B"), [("x", "y" * 25), ("z" * 3, "")], width=23) == (
        "+-----+---------------+\n"
        "| A   | B             |\n"
        "+-----+---------------+\n"
        "| x   | yyyyyyyyyyyyy |\n"
        "|     | yyyyyyyyyyyy  |\n"
        "| zzz |               |\n"
        "+-----+---------------+\n"
    )


def test_no_cell_moves_the_cursor() -> None:
    assert "| a [2Jb c |" in table(("H",), [("a\x1b[2Jb\rc",)], width=80)


def test_a_narrow_terminal_still_gets_a_table() -> None:
    assert table(("AB", "C"), [("x", "yy")], width=3).splitlines()[1] == "| A | C |"
