//===- Group.h - All ranks of a run -----------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_GROUP_H
#define MGQ_RUNTIME_COMMON_GROUP_H

#include "runtime/include/rt.h"
#include "runtime/src/common/Error.h"
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

namespace mgq::rt {

/// Another rank has failed; its own text says why.
struct PeerError : Error {
  using Error::Error;
};

/// A fault that all ranks meet alike.
struct CommonError : Error {
  using Error::Error;
};

/// Tags above those of programs.
enum RuntimeTag : int32_t {
  TagGather = 1 << 30,             ///< Bytes for rank 0.
  TagTensor,                       ///< Parameters, to and from rank 0.
  TagReduce,                       ///< Two of each bucket of gradients.
  TagShard = TagReduce + (1 << 21) ///< Two of each shard of frozen weights.
};

/// Buckets, or shards, that tags are enough for.
inline constexpr int32_t mostBuckets = 1 << 20;

/// A rank's end of a transport, with exceptions instead of statuses. Functions
/// throw Error with the transport's text.
class Group {
public:
  explicit Group(mgq_transport &transport) : transport(transport) {}
  Group(const Group &) = delete;
  Group &operator=(const Group &) = delete;

  int32_t rank() const { return transport.rank; }
  int32_t size() const { return transport.size; }
  /// Whether ranks are threads of this process.
  bool inProcess() const;

  int64_t send(const void *data, int64_t bytes, int32_t peer, int32_t tag);
  int64_t receive(void *data, int64_t bytes, int32_t peer, int32_t tag);
  /// `span`, if not null, gets when the message travelled.
  void wait(int64_t request, mgq_span *span = nullptr);
  /// Whether a message is done; its request is over then.
  bool test(int64_t request, mgq_span *span = nullptr);
  /// Sleeps until one of these may be done; may return early.
  void waitAny(const std::vector<int64_t> &requests);
  /// Says that this rank is alive; throws if another has aborted.
  void pulse() { wait(-1); }
  /// The same of one that waits for others outside the group: throws, too, if
  /// one of them has been silent for the timeout.
  void watch() { wait(-2); }
  /// Both at once: begins and waits.
  void sendNow(const void *data, int64_t bytes, int32_t peer, int32_t tag);
  void receiveNow(void *data, int64_t bytes, int32_t peer, int32_t tag);

  /// `all` gets size() times bytes, in rank order.
  void allGather(const void *mine, int64_t bytes, void *all);
  template <typename T>
  std::vector<T> allGather(const T &mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> all(size());
    allGather(&mine, sizeof mine, all.data());
    return all;
  }
  /// All values become rank 0's.
  template <typename T>
  void fromFirst(T &value) {
    value = allGather(value)[0];
  }

  /// Rank 0 gets the texts of all ranks, others nothing.
  std::vector<std::string> gatherText(const std::string &mine);

  /// Tells all ranks that this one ends; see mgq_transport.
  void abort(const std::string &message) {
    transport.abort(transport.self, message.c_str());
  }

  /// Runs `action` on all ranks. If it throws on some, all throw: the first of
  /// them its own exception, the others PeerError. Allows messages inside only
  /// if no rank can fail before them.
  template <typename Action>
  void agree(Action action);

  /// Whether the fault that agree() threw was the same on all ranks.
  bool isCommonFault() const { return commonFault; }

private:
  [[noreturn]] void failTransport();
  /// The first rank that failed, -1: none. `text`: of this rank's fault, null:
  /// it has none.
  int32_t firstFault(const char *text, std::string &itsText);

  mgq_transport &transport;
  bool commonFault = false;
};

template <typename Action>
void Group::agree(Action action) {
  std::exception_ptr mine;
  std::string text, first;
  try {
    action();
  } catch (const std::exception &error) {
    mine = std::current_exception();
    text = error.what();
  }
  int32_t faulty = firstFault(mine ? text.c_str() : nullptr, first);
  if (faulty == rank())
    std::rethrow_exception(mine);
  if (faulty >= 0)
    throw PeerError(fmt::format("rank {}: {}", faulty, first));
}

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_GROUP_H
