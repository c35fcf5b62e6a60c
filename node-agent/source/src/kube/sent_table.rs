//! The objects of one kind that were sent, by name.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::RandomState;
use hashbrown::HashTable;

use denizen_model::{ClusterPod, Event};
use denizen_object::{DecodedObject, ObjectKey};

/// What was sent last of each object. A cluster has 150,000 pods, so each takes 24 bytes here.
#[derive(Debug, Default)]
pub(super) struct SentTable {
    objects: HashTable<SentObject>,
    hasher: RandomState,
}

#[derive(Debug)]
pub(super) struct SentObject {
    last: LastSent,
    /// The number of the last list that had it; 0 if none had.
    pub list: u32,
}

#[derive(Debug)]
enum LastSent {
    /// A pod. The model has the same copy.
    Pod(Arc<ClusterPod>),
    /// The name and a hash of any other object, or of a pod that has ended. The hash covers the
    /// whole object. A resource version would not do: a restored etcd gives it out a second time.
    Digest(Box<(ObjectKey, u64)>),
}

impl SentObject {
    /// Whether `decoded` says the same.
    pub fn is_same(&self, decoded: &DecodedObject) -> bool {
        match (&self.last, &decoded.event) {
            (LastSent::Pod(last), Event::ClusterPod(_, now)) => now.as_ref() == Some(last),
            (LastSent::Pod(_), _) => false,
            (LastSent::Digest(last), _) => last.1 == decoded.digest,
        }
    }

    /// The event that the object is gone.
    pub fn gone(&self) -> Event {
        match &self.last {
            LastSent::Pod(pod) => Event::ClusterPod(pod.name.clone(), None),
            LastSent::Digest(last) => last.0.gone(),
        }
    }

    fn is_of(&self, key: &ObjectKey) -> bool {
        match (&self.last, key) {
            (LastSent::Pod(pod), ObjectKey::Pod(name)) => pod.name == *name,
            (LastSent::Pod(_), _) => false,
            (LastSent::Digest(last), key) => last.0 == *key,
        }
    }
}

impl SentTable {
    pub fn get(&self, key: &ObjectKey) -> Option<&SentObject> {
        self.objects.find(hash(&self.hasher, key), |sent| sent.is_of(key))
    }

    pub fn get_mut(&mut self, key: &ObjectKey) -> Option<&mut SentObject> {
        self.objects.find_mut(hash(&self.hasher, key), |sent| sent.is_of(key))
    }

    /// Notes that an object is sent. `list`: see [`SentObject::list`].
    pub fn insert(&mut self, sent: &DecodedObject, list: u32) {
        let last = if let Event::ClusterPod(_, Some(pod)) = &sent.event {
            LastSent::Pod(pod.clone())
        } else {
            LastSent::Digest(Box::new((sent.key.clone(), sent.digest)))
        };
        let now = SentObject { last, list };
        match self.get_mut(&sent.key) {
            Some(known) => *known = now,
            None => {
                let hash_of = |sent: &SentObject| match &sent.last {
                    LastSent::Pod(pod) => self.hasher.hash_one(&pod.name),
                    LastSent::Digest(last) => hash(&self.hasher, &last.0),
                };
                self.objects.insert_unique(hash(&self.hasher, &sent.key), now, hash_of);
            }
        }
    }

    /// Forgets an object; `None` if it was not sent.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<SentObject> {
        let found = self.objects.find_entry(hash(&self.hasher, key), |sent| sent.is_of(key));
        found.ok().map(|found| found.remove().0)
    }

    /// Forgets those that `stays` does not hold for.
    pub fn retain(&mut self, mut stays: impl FnMut(&SentObject) -> bool) {
        self.objects.retain(|sent| stays(sent));
    }
}

fn hash(hasher: &RandomState, key: &ObjectKey) -> u64 {
    if let ObjectKey::Pod(name) = key { hasher.hash_one(name) } else { hasher.hash_one(key) }
}
