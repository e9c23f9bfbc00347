//! Just enough Rust lexing for rules about code: comments and literals blanked, identifiers found.

/// The text with comments, strings and character literals replaced by blanks; line breaks stay where they are.
pub fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let length = blank_length(&chars, at);
        if length == 0 {
            out.push(chars[at]);
            at += 1;
        } else {
            let end = (at + length).min(chars.len());
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// Characters to blank from `at` on: the length of the comment or literal that begins there, else 0.
fn blank_length(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    match rest {
        ['/', '/', ..] => rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment(rest),
        ['"', ..] => quoted(rest, '"'),
        // A raw string only where no identifier ends in the r: `for"` does not exist, but `br"` does.
        ['r', '"' | '#', ..] if at == 0 || !is_word(chars[at - 1]) || chars[at - 1] == 'b' => {
            raw_string(rest)
        }
        // A character, not a lifetime: the quote closes after one character or an escape.
        ['\'', '\\', ..] => quoted(rest, '\''),
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i + 1 < rest.len() {
        match (rest[i], rest[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    rest.len()
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != quote {
        i += if rest[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

/// Length of `r#"…"#` with any number of hashes; 0 for a raw identifier such as `r#type`.
fn raw_string(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|&&c| c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let closing: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let body = 2 + hashes;
    let end = rest[body..].windows(closing.len()).position(|window| window == closing);
    end.map_or(rest.len(), |end| body + end + closing.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The identifiers and keywords of a line of blanked code, each with what follows it (blanks trimmed).
pub fn words(code: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = code;
    std::iter::from_fn(move || {
        rest = &rest[rest.find(is_word)?..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        rest = tail;
        Some((word, tail.trim_start()))
    })
}

/// The modules of std that blanked code names, also those in groups: `use std::{fs, io::Read}` gives fs and io.
pub fn std_modules(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (word, tail) in words(code) {
        let Some(path) = tail.strip_prefix("::").filter(|_| word == "std").map(str::trim_start) else {
            continue;
        };
        match path.strip_prefix('{') {
            None => found.extend(words(path).next().map(|(module, _)| module)),
            Some(group) => found.extend(group_heads(group)),
        }
    }
    found
}

/// First word of every item of a `{…}` group, whose opening brace is already gone.
fn group_heads(group: &str) -> Vec<&str> {
    let (mut heads, mut depth, mut item) = (Vec::new(), 0, 0);
    for (i, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                heads.extend(words(&group[item..i]).next().map(|(module, _)| module));
                if c == '}' {
                    break;
                }
                item = i + 1;
            }
            _ => {}
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        for (text, code) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */\n */ d", "a             \n    d"),
            (r#"f("x \" y", b)"#, r#"f(        , b)"#),
            ("f(r#\"a \" b\"#, c)", "f(          , c)"),
            ("r#type", "r#type"),
            (r"let c = '\''; d", r"let c =     ; d"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("'x' 'y", "    'y"),
            ("\"not closed", "           "),
        ] {
            assert_eq!(code_only(text), code, "{text}");
        }
    }

    #[test]
    fn words_come_with_what_follows() {
        let found: Vec<_> = words("unsafe { dbg !(x) }").collect();
        assert_eq!(found[0], ("unsafe", "{ dbg !(x) }"));
        assert_eq!(found[1], ("dbg", "!(x) }"));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn std_modules_are_found_in_paths_and_groups() {
        assert_eq!(std_modules("std::fs::read(p); std :: io::stdin()"), ["fs", "io"]);
        assert_eq!(std_modules("use std::{fmt, io::{self, Read},\n thread};"), ["fmt", "io", "thread"]);
        assert_eq!(std_modules("mystd::fs; standard::io"), [""; 0]);
    }
}
