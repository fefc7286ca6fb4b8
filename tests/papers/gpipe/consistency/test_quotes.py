from pipekit.papers.gpipe.consistency import quotes


def test_tables_are_read_from_the_ledger() -> None:
    table2, table3 = quotes.table2(), quotes.table3()
    assert len(table2) == len(table3) == 7
    senet = table2.set_index("model").loc["senet"]
    assert (senet["parameters (M)"], senet["top-1 (%)"], senet["top-5 (%)"]) == (146, 82.7, 96.2)
    pets = table3.loc["pets", ["train", "test", "classes", "accuracy (%)", "earlier best (%)"]]
    assert pets.tolist() == [3680, 3369, 37, 95.9, 93.8]
    assert len(quotes.figure1()) == 8


def test_commas_separate_thousands_only_inside_numbers() -> None:
    assert quotes.numbers("20,000 steps, 480x480, 4e") == [20000, 480, 480, 4]


def test_what_is_recorded_is_arithmetic_on_them() -> None:
    figure, points = quotes.draw_figure1()
    assert f"{quotes.size_and_accuracy():.2f} (paper)" in figure.layout.title.text
    assert (points["source"] == "AmoebaNet-B (6, 512), GPipe").sum() == 1
    values = [each.value for each in quotes.findings("figure1.svg")]
    assert values[1:] == [145.8 / 4, 32 / 12, 5, [1.0, 8.7]]
