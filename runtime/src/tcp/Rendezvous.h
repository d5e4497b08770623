//===- Rendezvous.h - How processes find each other -------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_TCP_RENDEZVOUS_H
#define MGQ_RUNTIME_TCP_RENDEZVOUS_H

#include "runtime/src/local/LaunchEnvironment.h"
#include <vector>

namespace mgq::tcp {

/// Connects this rank with all others: rank 0 listens at the place that all
/// know, learns where the others listen, and tells all of it. Returns sockets
/// by rank, -1 for this one. Throws rt::Error after `timeoutSeconds` (0: never)
/// or a fault.
std::vector<int> meet(const rt::LaunchEnvironment &place,
                      double timeoutSeconds);

} // namespace mgq::tcp

#endif // MGQ_RUNTIME_TCP_RENDEZVOUS_H
