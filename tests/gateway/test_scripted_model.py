"""The scripted model is what the gateway's tests believe: so it is held to its own promises."""

from tests.gateway.scripted.model import (
    END,
    Model,
    Template,
    decode,
    encode,
    logprob,
    misproved,
    parse,
)

ASK = [{"role": "user", "content": "list the files"}]


def answer(seed: int) -> tuple[list[int], list[int]]:
    prompt = encode(Template().render(ASK))
    return prompt, list(Model(seed).generate(prompt))


def test_tokens_of_a_beginning_are_not_the_beginning_of_the_tokens() -> None:
    assert encode("li") != encode("list")[:1]
    assert decode(encode("list <|im_end|> 日本")) == "list <|im_end|> 日本"


def test_what_was_sampled_is_not_what_encoding_its_text_gives() -> None:
    drifted = [seed for seed in range(20) if encode(decode(ids := answer(seed)[1])) != ids]
    assert len(drifted) > 10


def test_an_answer_goes_on_by_ids_to_the_end_of_an_answer_that_begins_so() -> None:
    whole = {decode(answer(seed)[1]) for seed in range(300)}
    for seed in range(30):
        prompt, ids = answer(seed)
        for cut in range(1, len(ids)):
            rest = list(Model(seed + 1000).generate(prompt + ids[:cut]))
            assert decode(ids[:cut] + rest) in whole


def test_an_answer_goes_on_behind_what_a_client_began() -> None:
    prompt = encode(Template().render(ASK) + "I say: ")
    whole = {decode(Model(seed).generate(prompt)) for seed in range(300)}
    ids = list(Model(3).generate(prompt))
    assert decode(ids[:4] + list(Model(4).generate(prompt + ids[:4]))) in whole


def test_equal_prompts_get_different_answers() -> None:
    assert len({decode(answer(seed)[1]) for seed in range(30)}) > 5


def test_a_row_proves_itself_and_a_wrong_one_does_not() -> None:
    prompt, ids = answer(1)
    row = prompt + ids
    costs = [0.0] * len(prompt) + [
        logprob(row[:t], row[t], 7) for t in range(len(prompt), len(row))
    ]
    mask = [0] * len(prompt) + [1] * len(ids)
    assert misproved(row, mask, costs, [7] * len(row)) == []
    assert misproved(row, mask, costs, [8] * len(row)) == list(range(len(prompt), len(row)))
    other = [*row[:3], row[3] + 1, *row[4:]]
    assert misproved(other, mask, costs, [7] * len(row)) == list(range(len(prompt), len(row)))


def test_the_template_strips_thinking_of_earlier_questions() -> None:
    thought = {"role": "assistant", "content": "a", "reasoning": "hm"}
    assert "hm" in Template().render([*ASK, thought])
    assert "hm" not in Template().render([*ASK, thought, *ASK])
    assert "hm" in Template(strips=False).render([*ASK, thought, *ASK])


def test_parsing_gives_back_what_the_model_wrote() -> None:
    texts = [decode(answer(seed)[1]) for seed in range(50)]
    parsed = [parse(text) for text in texts]
    assert any(each.reasoning for each in parsed)
    assert any(len(each.calls) == 2 for each in parsed)
    for text, each in zip(texts, parsed, strict=True):
        assert text.count("<tool_call>") == len(each.calls)
        assert text.endswith("<|im_end|>")
        assert "<" not in each.content
    cut = parse('x\n<tool_call>\n{"name": "sh", "argu')
    assert cut.calls == []
    assert "argu" in cut.content


def test_the_model_ends_each_turn_once() -> None:
    for seed in range(20):
        assert answer(seed)[1].count(END) == 1
