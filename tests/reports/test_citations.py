"""Citations for methods, tasks and rows."""

import re

import bench
from bench.cli.main import dispatch
from bench.request import plugins
from bench.rows.store import Store
from reports import citations
from tests import made

OWN = {"associative_needle", "gist", "lra_pathfinder_easy", "lra_text_easy", "perplexity"}
"""Tasks of this project, and of no paper."""
NO_PAPER = {"hf", "openai", "oracle_blocks", "oracle_topk", "oracle_topp"}


def test_every_entry_is_whole_and_cited():
    known = citations.citations()
    text = (plugins.CONF / citations.FILE).read_text()
    assert len(known) == len(re.findall("^@", text, re.MULTILINE))
    for one in known.values():
        assert {"author", "title"} <= one.fields.keys()
        assert one.text.count("{") == one.text.count("}")
        assert "eprint" not in one.fields or re.fullmatch(r"\d{4}\.\d{4,5}", one.fields["eprint"])
    papers = [one.fields["eprint"] for one in known.values() if "eprint" in one.fields]
    assert len(papers) == len(set(papers))
    used = {one.key for group in citations.GROUPS for name in plugins.available(group)
            for one in citations.cited(group, name)}  # fmt: skip
    assert used | {citations.ITSELF} == known.keys()


def test_every_method_and_task_of_a_paper_has_its_entry():
    without = {(group, name) for group in citations.GROUPS for name in plugins.available(group)
               if not citations.cited(group, name)}  # fmt: skip
    assert without == {("task", name) for name in OWN} | {("method", name) for name in NO_PAPER}


def test_every_task_of_others_has_a_homepage_and_what_verifies_it():
    for name, conf in plugins.usable("task").items():
        facts = conf.get("facts", {})
        assert conf["licence"] and ("homepage" in facts) == (name not in OWN), name
        if (conf.get("hub") or {}).get("unverified"):
            assert f"bench fetch {name} --probe" in facts["unverified"], name


def test_facts_are_no_part_of_a_request():
    assert "facts" not in bench.compose("task=qmsum").task


def test_bibtex_of_a_row_has_each_entry_once(capsys, tmp_path):
    Store(tmp_path).append([made.row(method="vcc", task="hotpotqa", row_id="ab" * 16)])
    assert dispatch(["cite", "abab", "task=ruler_qa_2", "--bibtex", f"results={tmp_path}"]) == 0
    entries = re.findall(r"^@\w+\{(\w+),$", capsys.readouterr().out, re.MULTILINE)
    assert entries == ["zeng2023vcc", "yang2018hotpotqa", "hsieh2024ruler", "longctxbench"]
