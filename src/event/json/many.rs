//! Several events in one document, an array or a list, as the texts that they are: each is then decoded by itself, so that one that
//! cannot be read does not cost the others.

use super::ApiGroup;
use super::reader::{Kind, Malformed, Reader};
use super::syntax;

/// The events of a document.
#[derive(Debug)]
pub struct Many<'a> {
    /// The group that a list says its events are of.
    pub group: Option<ApiGroup>,
    /// Their texts, in order.
    pub items: Items<'a>,
}

/// The elements of an array that is known to be well formed.
#[derive(Debug)]
pub struct Items<'a> {
    reader: Reader<'a>,
    more: bool,
}

impl<'a> Many<'a> {
    /// Reads an array, or an object with `items`: an `EventList`, or a `List` as kubectl prints it. Only where each event is; of members
    /// given twice the last one counts.
    ///
    /// # Errors
    /// Says what is wrong with the document.
    pub fn read(body: &'a [u8]) -> Result<Self, String> {
        match document(body) {
            Ok(Some(many)) => Ok(many),
            Ok(None) => Err("there are no items".to_owned()),
            Err(Malformed) => Err(syntax::fault(body)),
        }
    }
}

fn document(body: &[u8]) -> Result<Option<Many<'_>>, Malformed> {
    let mut reader = Reader::new(body);
    let (mut group, mut items) = (None, None);
    match reader.kind()? {
        Kind::Array => items = Some(elements(&mut reader)?),
        Kind::Object => {
            let mut more = reader.enter_object()?;
            while more {
                let key = reader.key()?;
                match (&*key, reader.kind()?) {
                    ("apiVersion", Kind::String) => {
                        let version = reader.string()?;
                        group =
                            [ApiGroup::Core, ApiGroup::Events].into_iter().find(|group| group.api_version() == version);
                    }
                    ("items", Kind::Array) => items = Some(elements(&mut reader)?),
                    // Go writes an empty list so.
                    ("items", Kind::Null) => {
                        let nothing = reader.clone();
                        reader.skip()?;
                        items = Some(Items { reader: nothing, more: false });
                    }
                    _ => reader.skip()?,
                }
                more = reader.next_member()?;
            }
        }
        _ => reader.skip()?,
    }
    reader.end()?;
    Ok(items.map(|items| Many { group, items }))
}

/// Passes over an array, which may be walked through then.
fn elements<'a>(reader: &mut Reader<'a>) -> Result<Items<'a>, Malformed> {
    let mut items = reader.clone();
    reader.skip()?;
    let more = items.enter_array()?;
    Ok(Items { reader: items, more })
}

impl<'a> Iterator for Items<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<Self::Item> {
        if !self.more {
            return None;
        }
        // Nothing of it fails: all of it has been passed over before.
        self.reader.kind().ok()?;
        let start = self.reader.offset();
        self.reader.skip().ok()?;
        let item = self.reader.since(start);
        self.more = self.reader.next_element().ok()?;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<(Option<ApiGroup>, Vec<String>), String> {
        let many = Many::read(body.as_bytes())?;
        Ok((many.group, many.items.map(|item| String::from_utf8_lossy(item).into_owned()).collect()))
    }

    #[test]
    fn items_are_what_stands_there() {
        let some = |group, items: &[&str]| Ok((group, items.iter().map(|item| (*item).to_owned()).collect()));
        assert_eq!(
            read(" [ {\"a\":[1,{}]} ,\n null,\"\\ud83d\",1e999 ]\n"),
            some(None, &[r#"{"a":[1,{}]}"#, "null", r#""\ud83d""#, "1e999"])
        );
        assert_eq!(read("[]"), some(None, &[]));
        let list = r#"{"kind":"EventList","items":[{"b":2}],"apiVersion":"events.k8s.io/v1","metadata":{"items":[3]}}"#;
        assert_eq!(read(list), some(Some(ApiGroup::Events), &[r#"{"b":2}"#]));
        assert_eq!(read(r#"{"apiVersion":"v1","items":null}"#), some(Some(ApiGroup::Core), &[]));
        assert_eq!(read(r#"{"apiVersion":7,"items":[1],"items":[2]}"#), some(None, &["2"]));
        let deep = format!("[{}{}]", "[".repeat(9000), "]".repeat(9000));
        assert_eq!(read(&deep).unwrap().1.len(), 1);
    }

    #[test]
    fn what_holds_none_is_refused() {
        for body in ["{}", "1", "null", r#"{"items":{}}"#] {
            assert_eq!(read(body), Err("there are no items".to_owned()), "{body}");
        }
        assert_eq!(read("[1,").unwrap_err(), "unexpected end of JSON input");
        assert_eq!(read("[1] 2").unwrap_err(), "invalid character '2' after top-level value");
        assert!(read(&"[".repeat(20_000)).is_err());
    }
}
