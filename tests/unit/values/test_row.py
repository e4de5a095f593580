import copy
import pickle

import pytest

from turnback.values.row import Row, row_class


def test_positions() -> None:
    row = Row(1, "b")
    assert (row[0], row[-1], row[0:1], len(row)) == (1, "b", (1,), 2)
    assert row == (1, "b") == tuple(row)
    assert hash(row) == hash((1, "b"))
    assert repr(row) == "Row(1, 'b')"
    assert row.get_field_names() == ()
    first, second = row
    assert (first, second) == (1, "b")


def test_names() -> None:
    row = Row(post="a", n=1)
    assert (row.post, row["post"], row[0], row[-2]) == ("a", "a", "a", "a")
    assert (row.n, row["n"], row[1], row[1:]) == (1, 1, 1, (1,))
    assert row == ("a", 1)
    assert row.as_dict() == {"post": "a", "n": 1}
    assert row.get_field_names() == ("post", "n")
    assert repr(row) == "Row(post='a', n=1)"
    assert isinstance(row, Row)


def test_a_row_of_names_makes_rows() -> None:
    person = Row("name", "age")
    assert person("Ann", 40).name == "Ann"
    assert person("Ann", 40) == ("Ann", 40)
    with pytest.raises(TypeError, match="name, age"):
        person("Ann")


def test_fields_win_over_methods() -> None:
    row = Row(count=3, index=4, as_dict=5, get_field_names=6, _fields=7, self=8, cls=9, mro=10)
    assert (row.count, row.index, row.as_dict, row.get_field_names) == (3, 4, 5, 6)
    assert (row._fields, row.self, row.cls, row.mro) == (7, 8, 9, 10)
    assert repr(row).startswith("Row(count=3, ")
    assert Row(inner=row).as_dict(recursive=True)["inner"]["as_dict"] == 5
    assert pickle.loads(pickle.dumps(row)).as_dict == 5


ODD_NAMES = ["a b", "1", "ünï", "x); raise SystemExit #", "class", "__x", "", "__len__",
             "__getitem__", "__class__", "__new__", "__slots__"]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_field_name_works(name: str) -> None:
    cls = row_class((name, "n"))
    row = tuple.__new__(cls, (5, 6))
    assert (row[name], row["n"], row[0], row[1], row[-2], len(row)) == (5, 6, 5, 6, 5, 2)
    assert row.n == 6
    assert row.as_dict() == {name: 5, "n": 6}
    assert pickle.loads(pickle.dumps(row)).as_dict() == {name: 5, "n": 6}
    if not (name.startswith("__") and name.endswith("__")):
        assert getattr(row, name) == 5


def test_wide_rows() -> None:
    names = tuple(f"c{i}" for i in range(300))
    row = row_class(names)(*range(300))
    assert [row[i] for i in range(300)] == list(range(300))
    assert [row[n] for n in names] == list(range(300))
    assert [getattr(row, n) for n in names] == list(range(300))


def test_what_is_not_there() -> None:
    row = Row(post="a", n=1)
    with pytest.raises(KeyError, match="no field 'x' in a row of post, n"):
        row["x"]
    with pytest.raises(IndexError):
        row[2]
    with pytest.raises(AttributeError, match="x"):
        row.x  # noqa: B018
    with pytest.raises(TypeError):
        row[1.5]
    with pytest.raises(TypeError, match="no field names"):
        Row(1, 2).as_dict()
    with pytest.raises(AttributeError):
        row.post = 5


def test_making_one_wrongly() -> None:
    with pytest.raises(TypeError, match="or for none"):
        Row(1, n=2)
    cls = row_class(("a", "b"))
    assert cls(b=2, a=1) == (1, 2)
    for args, kwargs in (((1,), {}), ((1, 2, 3), {}), ((1,), {"b": 2}), ((), {"a": 1, "c": 2})):
        with pytest.raises(TypeError, match="exactly these"):
            cls(*args, **kwargs)
    with pytest.raises(TypeError, match="distinct"):
        row_class(("a", "a"))
    with pytest.raises(TypeError, match="strings"):
        Row(1, 2)(3, 4)


def test_pickles_and_copies() -> None:
    for row in (Row(), Row(1, [2]), Row(a=1, b=Row(c=[2])), Row("f0"), row_class(("f0",))(1)):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            back = pickle.loads(pickle.dumps(row, protocol))
            assert back == row
            assert type(back) is type(row)
        assert type(copy.copy(row)) is type(row)
        deep = copy.deepcopy(row)
        assert deep == row
        assert type(deep) is type(row)


def test_classes_are_made_once_and_rows_have_no_dict() -> None:
    assert row_class(("a", "b")) is row_class(("a", "b")) is type(Row(a=1, b=2))
    assert not hasattr(Row(1), "__dict__")
    assert not hasattr(Row(a=1), "__dict__")


def test_as_dict_goes_deep_only_when_told() -> None:
    row = Row(a=Row(b=1), c=[Row(d=2)], e={"k": Row(f=3)}, g=(Row(h=4),))
    assert isinstance(row.as_dict()["a"], Row)
    assert row.as_dict(recursive=True) == {
        "a": {"b": 1}, "c": [{"d": 2}], "e": {"k": {"f": 3}}, "g": ({"h": 4},)
    }  # fmt: skip
