# What passed before isn't run again where a build folder is kept, as long as the program, what it reads and
# how it is called are the same. Sourced by what runs tests. In CI (CI is set), and with TEST_AGAIN=1,
# everything is run.
data=$(find tests/golden tests/fuzz/seeds models -type f -printf '%p %s %T@\n' | sort | sha256sum)

# unchanged MARK FILES WORDS...: true if `passed` was the last word on all that; FILES: paths, with blanks.
unchanged() {
    mark=$1
    key=$({ cat $2 | sha256sum; shift 2; echo "$data $*"; } | sha256sum)
    [ -z "${CI:-}${TEST_AGAIN:-}" ] && [ -e "$mark" ] && [ "$(cat "$mark")" = "$key" ] && return 0
    rm -f "$mark"
    return 1
}
passed() {
    echo "$key" >"$mark"
}
