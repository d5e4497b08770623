//===- Records.cpp - Runs a graph for every record of data ----------------===//

#include "runtime/include/records.h"
#include "runtime/src/common/DataReader.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Trace.h"
#include "runtime/src/local/Executor.h"
#include "runtime/src/local/ThreadPool.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <unistd.h>

using namespace mgq::rt;

namespace {
/// Aligned memory of one input or output.
struct Free {
  void operator()(void *memory) const { free(memory); }
};
using Buffer = std::unique_ptr<void, Free>;

/// The run of one job.
class RecordsRun {
public:
  explicit RecordsRun(const RecordsJob &job);
  ~RecordsRun() {
    if (lastDrawn > 0) // What follows has a line of its own.
      fmt::print(stderr, "\n");
  }
  void run();

private:
  std::map<std::string, std::string> metadata() const;
  std::string header() const;
  void showProgress(int64_t done);

  const RecordsJob &job;
  mgq_program program = {};
  ThreadPool pool;
  std::unique_ptr<DataReader> data;
  std::vector<Buffer> buffers; // Inputs, then outputs.
  bool terminal = isatty(STDERR_FILENO) == 1;
  double start = secondsNow(), lastDrawn = 0;
};
} // namespace

static Buffer makeBuffer(int64_t bytes) {
  int64_t size = (std::max<int64_t>(bytes, 1) + 63) / 64 * 64;
  Buffer buffer(aligned_alloc(64, size));
  if (!buffer)
    fail("out of memory: {} bytes", size);
  memset(buffer.get(), 0, size);
  return buffer;
}

RecordsRun::RecordsRun(const RecordsJob &job)
    : job(job), pool(job.threads > 0
                         ? job.threads
                         : std::max(1u, std::thread::hardware_concurrency())) {
  program.inputs = job.inputs.data();
  program.input_count = static_cast<int32_t>(job.inputs.size());
  program.metadata = job.metadata.data();
  program.metadata_count = static_cast<int32_t>(job.metadata.size());
  if (job.inputs.empty())
    fail("the graph has no inputs, so it has no records");
  pool.makeCurrent();
  data = std::make_unique<DataReader>(program, job.files);
  for (const mgq_input &input : job.inputs)
    buffers.push_back(makeBuffer(input.tensor.bytes));
  for (const mgq_output &output : job.outputs)
    buffers.push_back(makeBuffer(output.tensor.bytes));
}

/// What the files say under keys of this project, and what was added.
std::map<std::string, std::string> RecordsRun::metadata() const {
  std::map<std::string, std::string> found, source;
  for (const std::string &path : job.files) {
    SafetensorsFile file(path);
    for (const auto &[key, value] : file.metadata()) {
      if (key.compare(0, 4, "mgq.") != 0 || job.added.count(key))
        continue;
      auto [entry, isNew] = found.emplace(key, value);
      if (isNew)
        source[key] = path;
      else if (entry->second != value)
        fail("metadata '{}' is '{}' in '{}' and '{}' in '{}'; give the right "
             "one with --metadata={}=VALUE",
             key, entry->second, source[key], value, path, key);
    }
  }
  found.insert(job.added.begin(), job.added.end());
  return found;
}

/// The header of the target, its length included.
std::string RecordsRun::header() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  std::map<std::string, std::string> pairs = metadata();
  if (!pairs.empty())
    json["__metadata__"] = pairs;
  int64_t offset = 0;
  for (const mgq_output &output : job.outputs) {
    Shape shape = shapeOf(output.tensor);
    if (shape.empty())
      shape.push_back(1);
    shape[0] *= data->records();
    int64_t bytes = output.tensor.bytes * data->records();
    json[output.name] = {{"dtype", typeName(output.tensor.type)},
                         {"shape", shape},
                         {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' '); // Data starts aligned.
  uint64_t length = text.size();
  return std::string(reinterpret_cast<const char *>(&length), 8) + text;
}

void RecordsRun::showProgress(int64_t done) {
  static constexpr double interval = 0.1; // Seconds between two pictures.
  double now = secondsNow();
  if (!terminal || (done != data->records() && now - lastDrawn < interval))
    return;
  lastDrawn = now;
  double seconds = now - start;
  auto left = seconds / static_cast<double>(done) *
              static_cast<double>(data->records() - done);
  fmt::print(stderr, "\rrecord {}/{}  {:.1f} records/s  {:.0f} s left\033[K",
             done, data->records(), static_cast<double>(done) / seconds, left);
}

void RecordsRun::run() {
  std::string head = header();
  AtomicFile file(job.target);
  if (job.onTemporary)
    job.onTemporary(file.temporary());
  file.write(head);
  std::vector<void *> pointers;
  for (const Buffer &buffer : buffers)
    pointers.push_back(buffer.get());
  int64_t records = data->records();
  for (int64_t record = 0; record < records; ++record) {
    if (record + 1 < records)
      data->prefetch(record + 1);
    for (int32_t i = 0; i < program.input_count; ++i)
      data->load(record, i, static_cast<std::byte *>(pointers[i]));
    job.run(pointers.data());
    checkIndexError(fmt::format("the graph, record {}", record).c_str());
    auto offset = static_cast<int64_t>(head.size());
    for (size_t i = 0; i < job.outputs.size(); ++i) {
      int64_t bytes = job.outputs[i].tensor.bytes;
      file.writeAt(offset + record * bytes, pointers[job.inputs.size() + i],
                   bytes);
      offset += records * bytes;
    }
    showProgress(record + 1);
  }
  file.commit();
  if (job.onTemporary)
    job.onTemporary("");
}

std::string mgq::rt::runRecords(const RecordsJob &job) {
  try {
    RecordsRun(job).run();
    return "";
  } catch (const std::exception &error) {
    return error.what();
  }
}
