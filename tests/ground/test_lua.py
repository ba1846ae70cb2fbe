"""A script is one file, known by its digest, and sent again only to a server without it."""

import pytest

import ground
from ground.lua import load_script
from ground.redis.connect import connect_async, target_of


@pytest.fixture
def package(tmp_path, monkeypatch, request):
    """Writes scripts into a package of their own; gives its name."""
    name = f"scripts_of_{abs(hash(request.node.nodeid))}"
    folder = tmp_path / name / "lua"
    folder.mkdir(parents=True)
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def write(**scripts):
        for script, text in scripts.items():
            (folder / f"{script}.lua").write_text(text)
        return name

    return write


COUNT = """\
-- count.lua: add to a counter.
-- KEYS   counter
-- ARGV   how many
-- REPLY  the counter's new value
return redis.call('INCRBY', KEYS[1], ARGV[1])
"""


@pytest.fixture
def count(package):
    return load_script(package(count=COUNT), "count")


@pytest.fixture
async def async_redis(redis):
    client = connect_async(target_of(redis))
    yield client
    await client.aclose()


def test_a_script_knows_its_name_and_its_keys(count):
    assert count.name.endswith("/lua/count.lua")
    assert count.keys == ("counter",)


def test_it_runs_on_a_server_that_never_saw_it(count, redis):
    assert count.call(redis, ["n"], [2]) == 2


def test_it_runs_again_after_the_server_forgot_it(count, redis):
    count.call(redis, ["n"], [2])
    redis.script_flush()
    assert count.call(redis, ["n"], [3]) == 5


def test_it_is_sent_whole_only_once(count, real_redis):
    def sent_whole():
        return real_redis.info("commandstats").get("cmdstat_eval", {}).get("calls", 0)

    before = sent_whole()
    for _ in range(5):
        count.call(real_redis, ["n"], [1])
    assert sent_whole() == before + 1
    assert real_redis.get("n") == b"5"


async def test_it_runs_async_and_again_after_the_server_forgot_it(count, async_redis):
    assert await count.call_async(async_redis, ["n"], [2]) == 2
    await async_redis.script_flush()
    assert await count.call_async(async_redis, ["n"], [3]) == 5


def test_it_runs_on_a_cluster_where_its_key_lives(count, redis_cluster):
    client = ground.connect(redis_cluster.target)
    for key in ("a", "b", "c"):
        assert count.call(client, [key], [1]) == 1
        assert redis_cluster.node_of(key).ask("GET", key) == b"1"
    client.close()


async def test_it_runs_on_a_cluster_async(count, redis_cluster):
    client = connect_async(redis_cluster.target)
    for key in ("a", "b", "c"):
        assert await count.call_async(client, [key], [1]) == 1
    await client.aclose()


@pytest.mark.parametrize("keys", [[], ["a", "b"]])
def test_a_wrong_number_of_keys_is_refused_before_anything_is_sent(count, redis, keys):
    with pytest.raises(TypeError, match=r"count.lua takes the keys \('counter',\)"):
        count.call(redis, keys)
    assert redis.dbsize() == 0


def test_what_a_script_includes_is_there_once(package):
    name = package(
        main="-- KEYS\n-- include: one.lua\n-- include: two.lua\nreturn both()\n",
        one="-- include: shared.lua\nlocal function a() return shared() end\n",
        two="-- include: shared.lua\nlocal function both() return a() + shared() end\n",
        shared="local function shared() return 1 end\n",
    )
    script = load_script(name, "main")
    assert script.source.count("local function shared()") == 1
    assert "include:" not in script.source


def test_an_included_script_runs(package, redis):
    name = package(
        main="-- KEYS\n-- include: half.lua\nreturn half(tonumber(ARGV[1]))\n",
        half="local function half(n) return n / 2 end\n",
    )
    assert load_script(name, "main").call(redis, [], [8]) == 4


def test_files_that_include_each_other_are_each_there_once(package):
    name = package(
        main="-- KEYS\n-- include: other.lua\n-- the main one\n",
        other="-- include: main.lua\n-- the other one\n",
    )
    source = load_script(name, "main").source
    assert source.count("the main one") == source.count("the other one") == 1


def test_the_header_of_an_included_file_is_not_the_scripts_own(package):
    name = package(
        main="-- include: other.lua\n-- KEYS   mine\nreturn 1\n", other="-- KEYS   theirs ours\n"
    )
    assert load_script(name, "main").keys == ("mine",)


def test_a_script_without_a_header_is_refused_by_name(package):
    with pytest.raises(ValueError, match=r"bare.lua has no `-- KEYS` line"):
        load_script(package(bare="return 1\n"), "bare")


def test_an_error_in_a_script_is_told_as_it_is(package, redis):
    name = package(wrong="-- KEYS\nreturn redis.error_reply('LIMIT too low')\n")
    with pytest.raises(Exception, match="LIMIT too low"):
        load_script(name, "wrong").call(redis, [])


def test_a_script_may_include_one_of_another_package(package):
    name = package(gated="-- gated.lua: x\n-- KEYS   n\n-- include: limiter:line.lua\nreturn 1\n")
    source = load_script(name, "gated").source
    assert "local function first_waiter()" in source  # line.lua itself
    assert source.count("local function room()") == 1  # and what it includes, of its own package


def test_its_keys_and_arguments_have_the_names_of_its_header(package, redis):
    name = package(
        named="""\
-- named.lua: x
-- KEYS   first second
-- ARGV   lease_us how(fast, or '' for slow)
--        owner
-- REPLY  all of them
return { FIRST, SECOND, LEASE_US, HOW, OWNER }
"""
    )
    found = load_script(name, "named").call(redis, ["a", "b"], [5, "", "me"])
    assert found == [b"a", b"b", b"5", b"", b"me"]


def test_rows_are_read_one_by_one_also_after_others_that_are_counted(package, redis):
    name = package(
        rows="""\
-- rows.lua: x
-- KEYS
-- ARGV   how_many_held, then for each held: id fence(or 0),
--        then for each: word
-- REPLY  what they say
local said = { REST }
for id, fence in each_held() do said[#said + 1] = id .. fence end
for word in each() do said[#said + 1] = word end
return said
"""
    )
    script = load_script(name, "rows")
    assert script.call(redis, [], [2, "a", 1, "b", 2, "x", "y"]) == [2, b"a1", b"b2", b"x", b"y"]
    assert script.call(redis, [], [0]) == [2]


def test_a_script_has_the_forms_that_its_include_offers(package, redis):
    name = package(
        main="-- KEYS   own\n-- ARGV   more\n"
        "-- include: plain.lua or extra.lua\nreturn what() .. OWN .. MORE\n",
        plain="local function what() return 'plain ' end\n",
        extra="-- KEYS   other\n-- ARGV   word\nlocal function what() return OTHER .. WORD end\n",
    )
    assert load_script(name, "main").call(redis, ["k"], [1]) == b"plain k1"
    form = load_script(name, "main", "extra")
    assert (form.keys, form.name) == (("other", "own"), f"{name}/lua/main.lua (extra)")
    assert form.call(redis, ["o", "k"], ["w", 1]) == b"owk1"


def test_a_line_that_ends_with_a_form_is_of_that_form_alone(package, redis):
    name = package(
        main="-- KEYS\nlocal found = 'plain'\nfound = 'other' -- if full\nreturn found -- if any\n"
    )
    assert load_script(name, "main", "any").call(redis, []) == b"plain"
    assert load_script(name, "main", "any", "full").call(redis, []) == b"other"
    assert load_script(name, "main").call(redis, []) is None


@pytest.mark.parametrize("header", ["-- KEYS a\n-- ARGV a\n", "-- KEYS a\n-- ARGV job's id\n"])
def test_a_header_that_cannot_be_bound_is_refused(package, header):
    with pytest.raises(ValueError, match=r"bad.lua needs a plain name of its own for each key"):
        load_script(package(bad=header + "return 1\n"), "bad")


def test_rows_before_others_are_refused_without_their_number(package):
    name = package(bad="-- KEYS\n-- ARGV   for each held: id, then for each: word\nreturn 1\n")
    with pytest.raises(ValueError, match=r"bad.lua needs how_many_held"):
        load_script(name, "bad")
