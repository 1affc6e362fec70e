"""What outlives a reader's view: memories that are bounded, and the catalog of tests."""

from __future__ import annotations

from hud.core.lines import Identity
from hud.queries.scope import Catalog, Memory
from hud.store import Store
from hud.store.results import number_tests


def test_a_memory_answers_once_and_forgets_the_oldest_by_weight() -> None:
    memory, asked = Memory(10, len), []

    def get(key: str, size: int) -> str:
        return memory.get(key, lambda: asked.append(key) or key * size)

    assert [get("a", 4), get("b", 4), get("a", 4)] == ["aaaa", "bbbb", "aaaa"]
    get("c", 4)
    get("a", 4)
    assert asked == ["a", "b", "c"]
    get("b", 4)
    assert asked == ["a", "b", "c", "b"]
    get("huge", 50)
    get("huge", 50)
    assert asked[-2:] == ["b", "huge"]


def test_the_catalog_groups_variants_and_learns_what_is_new(store: Store) -> None:
    catalog = Catalog()

    def numbered(*told: tuple[str, str, str]) -> list[int]:
        said = {f"{test}[{op}][{dtype}]": (test, op, dtype) for test, op, dtype in told}
        names = {name: Identity(name, "file", "class", *rest) for name, rest in said.items()}
        return number_tests(store, list(names), names.__getitem__)

    first = numbered(("test_a", "add", "int8"), ("test_a", "add", "bool"), ("test_b", "add", "bool"))
    with store.read() as connection:
        a, also_a, b = catalog.families(connection, first)
        assert a == also_a != b
    later = numbered(("test_a", "add", "int8"), ("test_a", "mul", "int8"))
    assert later[0] == first[0]
    with store.read() as connection:
        assert catalog.families(connection, later)[0] == a
        cells = [catalog.cells[number] for number in catalog.cells_of(connection, [*first, *later])]
    assert cells == [("add", "int8"), ("add", "bool"), ("add", "bool"), ("add", "int8"), ("mul", "int8")]
