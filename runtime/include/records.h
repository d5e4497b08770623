//===- records.h - Runs a graph for every record of data --------*- C++ -*-===//
//
// For mgq-run --records, which compiles a graph in process. Nothing here throws
// through the caller: the compiler has no exceptions.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_INCLUDE_RECORDS_H
#define MGQ_RUNTIME_INCLUDE_RECORDS_H

#include "runtime/include/rt.h"
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mgq::rt {

struct RecordsJob {
  std::vector<mgq_input> inputs;   ///< Of one record.
  std::vector<mgq_output> outputs; ///< Of one record.
  std::vector<mgq_pair> metadata;  ///< Of the model.
  std::vector<std::string> files;  ///< Data, as for training.
  std::string target;
  /// Added to what the files have under keys that start with `mgq.`.
  std::map<std::string, std::string> added;
  int threads = 0; ///< 0: all cores.
  /// Reads the inputs' buffers, writes the outputs', in that order; each is
  /// 64-byte aligned. Calls mgq_parallel_for and mgq_index_error.
  std::function<void(void *const *buffers)> run;
  /// Is told the temporary file before it is made, "" after the last use.
  std::function<void(const std::string &path)> onTemporary;
};

/// Writes `target`, a safetensors file with the rows of all records of each
/// output: [records x rows, ...], or [records] for a scalar. Holds one record
/// at a time. Gives the text of an error, which leaves no file; empty: none.
std::string runRecords(const RecordsJob &job);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_INCLUDE_RECORDS_H
