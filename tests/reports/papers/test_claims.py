"""The claims of the papers, compared with made rows."""

import pytest

from bench.rows.store import Store
from reports.papers import claims, to_unfused
from tests.reports.papers.published_rows import RANDOM_T5, ratio, real, table, unfused

LONGEST = next(claim for claim in claims.load_claims() if claim.longest)
ENCODER, ANSWER = (
    next(claim for claim in claims.load_claims() if claim.table == name)
    for name in ("vcc_table1", "vcc_table2")
)
PRINTED = 1 / LONGEST.longest["printed"]


def probe(method: str, tokens: int, **more):
    row = {
        "row_id": method, "created_utc": "2026-01-01", "status": "ok", "method": method,
        "model": "random-roberta-base", "host_id": "here", "batch": 1, "dtype": "float32",
        "device": "cpu", "max_length_fit": tokens, "max_length_end": "oom_host",
        "measure": "speed", "weights_kind": "random",
    }  # fmt: skip
    return row | more


def found(*rows):
    return next(one for one in claims.findings([], rows) if one.claim.longest)


@pytest.fixture(autouse=True)
def only_longest(monkeypatch):
    monkeypatch.setattr(claims, "load_claims", lambda: [LONGEST])


@pytest.mark.parametrize(("tokens", "verdict"), [(8192, "reproduced"), (32768, "differs")])
def test_the_longest_input_is_compared_with_unfused_attentions(tokens, verdict):
    finding = found(probe("vanilla_eager", 1024), probe("bigbird", tokens), probe("vanilla", 4096))
    assert finding.printed == pytest.approx(PRINTED) and finding.verdict == verdict
    assert finding.measured.value == 1024 / tokens and finding.fused == 4096 / tokens


@pytest.mark.parametrize(("tokens", "verdict"), [(4096, "undecided"), (32768, "differs")])
def test_a_search_that_ran_out_of_time_gives_a_bound(tokens, verdict):
    stopped = probe("bigbird", tokens, max_length_end="timeout")
    finding = found(probe("vanilla_eager", 1024), stopped, probe("vanilla", 4096))
    assert finding.verdict == verdict and finding.measured.lo == 0.0 and finding.fused is None
    assert finding.reason == f"bigbird fits at least {tokens:,} tokens in time"


@pytest.mark.parametrize("other", [{"host_id": "there"}, {"measure": "training"}])
def test_rows_of_two_machines_or_of_a_forward_and_a_training_step_are_no_ratio(other):
    finding = found(probe("vanilla_eager", 1024, **other), probe("bigbird", 8192))
    assert finding.verdict == "no row yet" and finding.measured is None


@pytest.mark.parametrize(
    ("more", "verdict", "reason"),
    [({}, "reproduced", ""), ({"noisy": True}, "undecided", to_unfused.BUSY)],
)
def test_a_doubt_about_one_row_leaves_a_claim_undecided(
    monkeypatch, tmp_path, more, verdict, reason
):
    monkeypatch.setattr(claims, "load_claims", lambda: [ENCODER])
    Store(tmp_path).append([ratio(0.54), unfused(**more)])
    [finding] = claims.findings([table(ENCODER.table, tmp_path)], [])
    assert (finding.verdict, finding.reason) == (verdict, reason)
    assert finding.measured.value == pytest.approx(0.27)


def test_a_ratio_to_fused_attention_is_of_what_the_cell_prints(monkeypatch, tmp_path):
    """A row's own ratio is for the encoder; a whole answer's uses the time of a further token of
    fused vanilla."""
    monkeypatch.setattr(claims, "load_claims", lambda: [ENCODER, ANSWER])

    def encoder_and_answer():
        return claims.findings([table(one.table, tmp_path) for one in (ENCODER, ANSWER)], [])

    of_t5 = ratio(0.54, **RANDOM_T5), unfused(**RANDOM_T5)
    Store(tmp_path).append([ratio(0.54), unfused(), *of_t5])
    encoder, answer = encoder_and_answer()
    assert encoder.fused == pytest.approx(0.54) and encoder.measured.value == pytest.approx(0.27)
    assert answer.fused is None and answer.measured.value == pytest.approx(93 / 239)
    vanilla = {"method": "vanilla", "method_params": "{}", "decode_ns_per_token": 2 * 10**6}
    Store(tmp_path).append([real(**{**RANDOM_T5, **vanilla})])
    encoder, answer = encoder_and_answer()
    assert encoder.fused == pytest.approx(0.54) and answer.measured.value == pytest.approx(93 / 239)
    assert answer.fused == pytest.approx(93 / 178)
