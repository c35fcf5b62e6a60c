//! A keeper, its client, and others who change the table.

use super::*;
use crate::{Content, Extent, Keeper, Repair};

/// What a client wants.
struct WantedContent {
    chains: Vec<Chain>,
    elements: Vec<Element>,
    extent: Extent,
    garbage: Option<Key>,
}

impl Content for WantedContent {
    fn chains(&self) -> Vec<Chain> {
        self.chains.clone()
    }

    fn elements(&self) -> impl Iterator<Item = Element> {
        self.elements.iter().cloned()
    }

    fn extent(&self) -> Extent {
        self.extent
    }

    fn is_garbage(&self, _set: SetId, key: &Key) -> bool {
        self.garbage == Some(*key)
    }
}

fn wanted(schema: &Schema) -> WantedContent {
    let (chains, elements) = (chains(schema), elements(schema));
    WantedContent { chains, elements, extent: Extent::Whole, garbage: None }
}

fn sync(kernel: &mut Kernel, keeper: &mut Keeper, wanted: &mut WantedContent) -> Repair {
    Keeper::sync(kernel, &mut [(keeper, wanted)]).unwrap()
}

/// Whether the kernel holds exactly this.
fn holds(kernel: &mut Kernel, keeper: &Keeper, wanted: &WantedContent) -> bool {
    let seen = kernel.observe(keeper.schema()).unwrap();
    let structure = seen.structure(keeper.schema(), &wanted.chains);
    let delta = seen.difference(wanted.elements(), |_| true);
    structure == Some(Structure::default()) && delta.is_empty()
}

#[test]
fn the_kernel_gets_what_is_noted_and_keeps_it() {
    alone(|kernel| {
        let schema = schema(TableFamily::Ip);
        let (mut keeper, mut wanted) = (Keeper::new(schema.clone()), wanted(&schema));
        assert!(sync(kernel, &mut keeper, &mut wanted).rebuilt);
        assert!(keeper.is_programmed() && holds(kernel, &keeper, &wanted));
        assert_eq!(keeper.count(), wanted.elements.len());
        let gone = wanted.elements.remove(0);
        wanted.garbage = Some(gone.key);
        keeper.note(|delta| delta.extend(vec![gone.clone()], Vec::new()));
        assert!(!keeper.is_programmed());
        assert!(sync(kernel, &mut keeper, &mut wanted).is_none());
        assert!(keeper.is_programmed() && holds(kernel, &keeper, &wanted));
        // Nobody else changed anything: nothing is read.
        keeper.check(kernel.now());
        assert!(!keeper.is_unknown());
        let mut other = Kernel::open().unwrap();
        let chain = wanted.chains[0].name.clone();
        other.write(schema.family, |batch| batch.flush_chain(schema.name, &chain)).unwrap();
        other.write(schema.family, |batch| batch.add_elements(&schema, &[gone])).unwrap();
        keeper.check(kernel.now());
        let repair = sync(kernel, &mut keeper, &mut wanted);
        assert_eq!(repair, Repair { rebuilt: false, chains: 1, elements: 1 });
        assert!(holds(kernel, &keeper, &wanted));
        assert!(keeper.remove(kernel, &[]).unwrap().is_none(), "its state is known");
        assert!(Keeper::remove_table(kernel, &schema, &[&chain]).unwrap());
    });
}

#[test]
fn what_is_refused_is_named_and_everything_else_is_there() {
    alone(|kernel| {
        let schema = schema(TableFamily::Ip);
        let (mut keeper, mut wanted) = (Keeper::new(schema.clone()), wanted(&schema));
        let (right, first) = (wanted.elements[3].clone(), wanted.elements.len() - 1);
        wanted.elements[3].value = Value::Goto("not-there".into());
        for _ in 0..2 {
            let error = Keeper::sync(kernel, &mut [(&mut keeper, &mut wanted)]).unwrap_err();
            assert!(
                matches!(&error, NftError::PartlyRefused { rejected, .. } if rejected.len() == 1),
                "{error}"
            );
            let [rejected] = keeper.rejected() else { panic!("{:?}", keeper.rejected()) };
            assert_eq!((rejected.set, rejected.key), (right.set, right.key));
            let seen = kernel.observe(&schema).unwrap();
            assert_eq!(seen.elements().count(), first, "all but one");
        }
        wanted.elements[3] = right;
        sync(kernel, &mut keeper, &mut wanted);
        assert!(keeper.rejected().is_empty() && holds(kernel, &keeper, &wanted));
    });
}

/// What another version did is not lost for a content that is only partly known.
#[test]
fn another_versions_table_stays_until_all_is_known() {
    alone(|kernel| {
        let schema = schema(TableFamily::Ip);
        let (mut keeper, mut wanted) = (Keeper::new(schema.clone()), wanted(&schema));
        let older = Schema { sets: schema.sets[..3].to_vec(), ..schema.clone() };
        kernel.write(schema.family, |batch| batch.replace_table(false, &older, &[])).unwrap();
        wanted.extent = Extent::Partly { into_foreign: false };
        let error = Keeper::sync(kernel, &mut [(&mut keeper, &mut wanted)]).unwrap_err();
        assert!(matches!(error, NftError::OtherVersion { .. }), "{error}");
        wanted.extent = Extent::Partly { into_foreign: true };
        let all = std::mem::take(&mut wanted.elements);
        wanted.elements = all.iter().filter(|element| element.set == NAMES).cloned().collect();
        let repair = sync(kernel, &mut keeper, &mut wanted);
        assert_eq!((repair.rebuilt, repair.elements), (false, wanted.elements.len()));
        keeper.mark_unknown();
        (wanted.extent, wanted.elements) = (Extent::Whole, all);
        assert!(sync(kernel, &mut keeper, &mut wanted).rebuilt);
        assert!(holds(kernel, &keeper, &wanted));
    });
}
