//! The table of connections, and which one gives way to a new one.
//!
//! A connection counts as authenticated once a request on it had a valid token. When there are too many, the oldest
//! connection without one is closed, of the peer that has the most: a local user who opens connections and sends
//! nothing displaces only their own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::peer::{Peer, local_uids};

/// Timeout from the accept to the first authenticated request.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum interval between two reads of the kernel's table of sockets, which takes about a millisecond when it is
/// long.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(200);

/// The table of connections.
pub struct Connections {
    table: Mutex<Table>,
    limit: usize,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Entry>,
    next: u64,
    looked_up: Option<Instant>,
}

struct Entry {
    address: SocketAddr,
    peer: Peer,
    /// Whether the kernel's table was searched for the peer's uid.
    looked_up: bool,
    authenticated: bool,
    closed: CancellationToken,
}

/// One connection; removed from the table when it is dropped.
pub struct Connection {
    id: u64,
    owner: Arc<Connections>,
    /// Cancelled when the connection has to give way.
    closed: CancellationToken,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.id)
    }
}

impl Connection {
    /// Notes that a request on this connection was authenticated: from now on it gives way to no other one.
    pub fn set_authenticated(&self) {
        if let Some(entry) = self.owner.table.lock().open.get_mut(&self.id) {
            entry.authenticated = true;
        }
    }

    fn is_authenticated(&self) -> bool {
        self.owner.table.lock().open.get(&self.id).is_some_and(|entry| entry.authenticated)
    }

    /// Completes, with the reason, when the connection has to be closed: it gives way to another one, or its client has
    /// not authenticated in time. While `is_busy`, a request is being served whose credential is not known yet.
    pub async fn must_close(&self, is_busy: impl Fn() -> bool) -> &'static str {
        self.must_close_after(AUTHENTICATION_TIMEOUT, is_busy).await
    }

    async fn must_close_after(&self, timeout: Duration, is_busy: impl Fn() -> bool) -> &'static str {
        let unauthenticated = async {
            loop {
                tokio::time::sleep(timeout).await;
                if self.is_authenticated() {
                    std::future::pending::<()>().await;
                }
                if !is_busy() {
                    return;
                }
            }
        };
        tokio::select! {
            () = self.closed.cancelled() => "it gives way to a new connection",
            () = unauthenticated => "no request on it was authenticated in time",
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.owner.table.lock().open.remove(&self.id);
    }
}

impl Connections {
    /// At most `limit` connections.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { table: Mutex::default(), limit: limit.max(1) })
    }

    /// Adds a connection, for which another one may be closed. `None` if there is no room: every other connection is
    /// authenticated, or those of this peer would leave too little for others.
    pub fn add(self: &Arc<Self>, address: SocketAddr) -> Option<Arc<Connection>> {
        self.add_with(address, Instant::now(), local_uids)
    }

    fn add_with(
        self: &Arc<Self>,
        address: SocketAddr,
        now: Instant,
        uids: impl FnOnce() -> HashMap<SocketAddr, u32>,
    ) -> Option<Arc<Connection>> {
        let mut table = self.table.lock();
        let id = table.next;
        table.next += 1;
        let closed = CancellationToken::new();
        let entry = Entry {
            address,
            peer: Peer::Address(address.ip().to_canonical()),
            looked_up: false,
            authenticated: false,
            closed: closed.clone(),
        };
        table.open.insert(id, entry);
        // Peers matter only when room is short.
        if table.open.len() > self.limit / 2 {
            table.look_up_peers(now, uids);
        }
        let own = table.open[&id].peer;
        // A quarter is kept for all other peers together.
        let most_per_peer = (self.limit - self.limit / 4).max(1);
        let mut fits = true;
        if table.count(own) > most_per_peer {
            fits = table.close_oldest_of(own, id);
        }
        if fits && table.open.len() > self.limit {
            fits = table.close_one(id);
        }
        if !fits {
            table.open.remove(&id);
            return None;
        }
        Some(Arc::new(Connection { id, owner: self.clone(), closed }))
    }

    /// Closes one connection without authentication, because the process has run out of descriptors.
    pub fn make_room(&self) {
        self.table.lock().close_one(u64::MAX);
    }
}

impl Table {
    fn look_up_peers(&mut self, now: Instant, uids: impl FnOnce() -> HashMap<SocketAddr, u32>) {
        if self.looked_up.is_some_and(|last| now.duration_since(last) < LOOKUP_INTERVAL) {
            return;
        }
        self.looked_up = Some(now);
        let uids = uids();
        for entry in self.open.values_mut().filter(|entry| !entry.looked_up) {
            entry.looked_up = true;
            let address = SocketAddr::new(entry.address.ip().to_canonical(), entry.address.port());
            if let Some(uid) = uids.get(&address).filter(|_| address.ip().is_loopback()) {
                entry.peer = Peer::Uid(*uid);
            }
        }
    }

    fn count(&self, peer: Peer) -> usize {
        self.open.values().filter(|entry| entry.peer == peer).count()
    }

    /// Closes the oldest unauthenticated connection of the peer with the most connections, except `keep`.
    fn close_one(&mut self, keep: u64) -> bool {
        let mut peers: HashMap<Peer, usize> = HashMap::new();
        for entry in self.open.values() {
            *peers.entry(entry.peer).or_default() += 1;
        }
        let mut peers: Vec<(usize, Peer)> = peers.into_iter().map(|(peer, count)| (count, peer)).collect();
        peers.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        peers.into_iter().any(|(_, peer)| self.close_oldest_of(peer, keep))
    }

    fn close_oldest_of(&mut self, peer: Peer, keep: u64) -> bool {
        let candidates = self.open.iter().filter(|(id, entry)| **id != keep && entry.peer == peer);
        let oldest = candidates.filter(|(_, entry)| !entry.authenticated).map(|(id, _)| *id).min();
        let Some(entry) = oldest.and_then(|id| self.open.remove(&id)) else { return false };
        entry.closed.cancel();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Ports from 1000 on belong to user 1000, from 2000 on to user 2000.
    fn uids() -> HashMap<SocketAddr, u32> {
        (1000..3000).map(|port| (address(port), u32::from(port) / 1000 * 1000)).collect()
    }

    fn open(connections: &Arc<Connections>, port: u16) -> Option<Arc<Connection>> {
        let later = Instant::now() + LOOKUP_INTERVAL * u32::from(port);
        connections.add_with(address(port), later, uids)
    }

    #[test]
    fn the_peer_with_the_most_idle_connections_gives_way() {
        let connections = Connections::new(8);
        let other = open(&connections, 2000).unwrap();
        let idle: Vec<_> = (0..20).map(|i| open(&connections, 1000 + i).unwrap()).collect();
        assert!(!other.closed.is_cancelled(), "one user's connections displace only their own");
        assert!(idle[0].closed.is_cancelled() && !idle[19].closed.is_cancelled(), "the oldest is closed first");
        let open_now = idle.iter().filter(|one| !one.closed.is_cancelled()).count();
        assert_eq!(open_now, 6, "a quarter is kept for others");
        let second = open(&connections, 2001).unwrap();
        assert!(!second.closed.is_cancelled() && !other.closed.is_cancelled());
    }

    #[test]
    fn authenticated_connections_are_never_closed_for_new_ones() {
        let connections = Connections::new(4);
        let used: Vec<_> = (0..3).map(|i| open(&connections, 1000 + i).unwrap()).collect();
        used.iter().for_each(|connection| connection.set_authenticated());
        assert!(open(&connections, 1010).is_none(), "this user has three of four");
        let other = open(&connections, 2000).unwrap();
        other.set_authenticated();
        assert!(open(&connections, 2001).is_none(), "no room");
        drop(other);
        assert!(open(&connections, 2002).is_some());
        assert!(used.iter().all(|connection| !connection.closed.is_cancelled()));
    }

    #[test]
    fn a_dropped_connection_is_forgotten() {
        let connections = Connections::new(2);
        for i in 0..10 {
            drop(open(&connections, 1000 + i).unwrap());
        }
        assert!(connections.table.lock().open.is_empty());
    }

    #[tokio::test]
    async fn a_client_has_a_time_until_its_first_authenticated_request() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let timeout = Duration::from_millis(20);
        let connections = Connections::new(4);
        let began = Instant::now();
        let idle = open(&connections, 1000).unwrap();
        idle.must_close_after(timeout, || false).await;
        assert!(began.elapsed() >= timeout);
        // A request that is being served is waited for, and asked about after each timeout.
        let asked = AtomicUsize::new(0);
        idle.must_close_after(timeout, || asked.fetch_add(1, Ordering::Relaxed) < 2).await;
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        idle.set_authenticated();
        let never = idle.must_close_after(timeout, || false);
        tokio::time::timeout(5 * timeout, never).await.expect_err("an authenticated connection stays");
    }
}
