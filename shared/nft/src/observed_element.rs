//! An element of a set, as the kernel has it.

use std::sync::Arc;

use denizen_netlink::Attributes;
use nix::libc;

use crate::bytes::Data;
use crate::set::{DataType, Set, Value};
use crate::user_data::comment_in;

/// An element's value (`None`: a value that no element of ours has), and its comment.
pub(crate) type ObservedElement = (Option<Value>, Option<Arc<str>>);

pub(crate) fn observed_element(set: &Set, element: Attributes<'_>) -> ObservedElement {
    let comment = element.find(6).and_then(comment_in).map(Arc::from);
    (value(set, element), comment)
}

fn value(set: &Set, element: Attributes<'_>) -> Option<Value> {
    let data = element.nested(2);
    match &set.data {
        DataType::None => Some(Value::Member),
        DataType::Fields(_) => data.find(1).and_then(Data::from_bytes).map(Value::Data),
        DataType::Verdict => {
            let verdict = data.nested(2);
            let is_goto = verdict.find_u32(1).is_some_and(|code| code as i32 == libc::NFT_GOTO);
            verdict.find_str(2).filter(|_| is_goto).map(|chain| Value::Goto(chain.into()))
        }
    }
}
