//===- Checkpoint.cpp - Saves and restores training -----------------------===//

#include "runtime/src/common/Checkpoint.h"
#include "runtime/src/common/Error.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <unistd.h>

using namespace mgq::rt;
namespace fs = std::filesystem;

static constexpr const char *temporaryPrefix = ".tmp-checkpoint-";
static constexpr int stateVersion = 1;

/// A part of each trainable parameter, and what stands before its name.
struct Kind {
  std::string prefix;
  ParamPart part;
  /// Called before the first parameter is read.
  std::function<void()> prepare = nullptr;
};
static const Kind valueKind = {"", ParamPart::Value};
static const Kind gradientKind = {"", ParamPart::Gradient};
static const Kind momentumKind = {"momentum/", ParamPart::Momentum};
static const Kind varianceKind = {"variance/", ParamPart::Variance};
static const Kind masterKind = {"master/", ParamPart::Master};
static const std::vector<Kind> modelKinds = {valueKind};
static const std::vector<Kind> optimizerKinds = {momentumKind, varianceKind,
                                                 masterKind};
// Residuals of compressed gradients.
static const Kind ownerKind = {"residual/owner/", ParamPart::Staging};
static const std::string workerPrefix = "residual/worker.";
static Kind workerKind(int32_t replica) {
  return {workerPrefix + std::to_string(replica) + "/", ParamPart::Staging};
}
static const std::vector<ParamPart> allParts = {
    ParamPart::Value, ParamPart::Momentum, ParamPart::Variance,
    ParamPart::Master};

/// The type of a tensor in a checkpoint: values are in their stored type.
static mgq_type typeOf(const Kind &kind, const mgq_param &param) {
  return kind.part == ParamPart::Value ? param.stored.type : MGQ_F32;
}

static void writeKinds(const std::string &path, Transfer &transfer,
                       const std::vector<Kind> &kinds) {
  const mgq_program &program = transfer.program();
  std::vector<TensorSource> tensors;
  for (const Kind &kind : kinds) {
    std::function<void()> prepare = kind.prepare;
    for (int32_t i : transfer.paramsWith(kind.part)) {
      const mgq_param &param = program.params[i];
      tensors.push_back({kind.prefix + param.name, shapeOf(param.stored),
                         nullptr, param.canonical_permutation,
                         [&transfer, i, part = kind.part,
                          prepare](int64_t begin, int64_t count, float *to) {
                           if (prepare && begin == 0)
                             prepare();
                           transfer.read(i, part, begin, count, to);
                         },
                         typeOf(kind, param)});
      prepare = nullptr;
    }
  }
  writeSafetensors(path, tensors, {{"format", "pt"}});
}

void mgq::rt::writeGradients(const std::string &path, Transfer &transfer) {
  writeKinds(path, transfer, {gradientKind});
}

void mgq::rt::serveGradients(Transfer &transfer) {
  transfer.serve({ParamPart::Gradient});
}

//===----------------------------------------------------------------------===//
// Residuals of compressed gradients
//===----------------------------------------------------------------------===//

/// What is saved, in this order: whole tensors of what owners keep, then of
/// each worker. All ranks put them together (serveResiduals) as they are read.
static std::vector<Kind> residualKinds(Transfer &transfer,
                                       CompressedGradients *residuals) {
  std::vector<Kind> kinds;
  if (!residuals || !residuals->isSaved())
    return kinds;
  transfer.setStaging(residuals->stagingOffset());
  kinds.push_back(ownerKind);
  kinds.back().prepare = [residuals] { residuals->collectOwners(); };
  for (int32_t r = 0; r < transfer.program().replicas; ++r) {
    kinds.push_back(workerKind(r));
    kinds.back().prepare = [residuals, r] { residuals->collectWorker(r); };
  }
  return kinds;
}

static void serveResiduals(Transfer &transfer, CompressedGradients *residuals) {
  for (const Kind &kind : residualKinds(transfer, residuals)) {
    kind.prepare();
    transfer.serve({kind.part});
  }
}

/// Rank 0: the number of workers whose residuals a checkpoint has, if this run
/// needs them.
static int32_t savedWorkers(const SafetensorsFile &file,
                            const Transfer &transfer,
                            const CompressedGradients *residuals) {
  const char *first =
      transfer.program().params[trainableParams(transfer.program()).at(0)].name;
  if (!file.find(ownerKind.prefix + first))
    return 0;
  if (!residuals || !residuals->isSaved()) {
    printError("note: '{}' has residuals of compressed gradients, which this "
               "run does not need",
               file.path());
    return 0;
  }
  int32_t count = 0;
  while (file.find(workerKind(count).prefix + first))
    ++count;
  return count;
}

void mgq::rt::serveCheckpoint(Transfer &transfer,
                              CompressedGradients *residuals) {
  transfer.serve(allParts);
  serveResiduals(transfer, residuals);
}

void mgq::rt::acceptCheckpoint(Transfer &transfer,
                               CompressedGradients *residuals) {
  transfer.accept(allParts);
  int32_t workers = transfer.fromFirst(0);
  if (!workers)
    return;
  transfer.setStaging(residuals->stagingOffset());
  transfer.accept({ParamPart::Staging});
  residuals->adoptOwners();
  for (int32_t i = 0; i < workers; ++i) {
    transfer.accept({ParamPart::Staging});
    residuals->adoptWorker(i, workers);
  }
}

void mgq::rt::acceptParameters(Transfer &transfer) {
  transfer.accept({ParamPart::Value});
}

/// The step of "checkpoint-STEP", empty for other names.
static std::optional<int64_t> stepOfName(const std::string &name) {
  static const std::string prefix = "checkpoint-";
  if (name.rfind(prefix, 0) != 0 || name.size() == prefix.size() ||
      name.size() > prefix.size() + 18 ||
      name.find_first_not_of("0123456789", prefix.size()) != name.npos)
    return std::nullopt;
  return std::stoll(name.substr(prefix.size()));
}

/// Step and path of all checkpoints in a folder, by step.
static std::vector<std::pair<int64_t, fs::path>>
listCheckpoints(const std::string &output) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code code;
  for (const auto &entry : fs::directory_iterator(output, code))
    if (auto step = stepOfName(entry.path().filename().string()))
      if (fs::exists(entry.path() / "trainer_state.json", code))
        found.emplace_back(*step, entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

std::string mgq::rt::latestCheckpoint(const std::string &output) {
  auto found = listCheckpoints(output);
  return found.empty() ? "" : found.back().second.string();
}

void mgq::rt::cleanTemporary(const std::string &output) {
  std::error_code code;
  std::vector<fs::path> leftovers;
  for (const auto &entry : fs::directory_iterator(output, code))
    if (entry.path().filename().string().rfind(temporaryPrefix, 0) == 0)
      leftovers.push_back(entry.path());
  for (const fs::path &path : leftovers)
    fs::remove_all(path, code);
}

void mgq::rt::checkCheckpointFolder(const std::string &output) {
  std::error_code code;
  fs::create_directories(output, code);
  fs::path probe = fs::path(output) / (temporaryPrefix + std::string("probe"));
  fs::remove_all(probe, code);
  if (!fs::create_directory(probe, code))
    fail("cannot write checkpoints in '{}': {}", output, code.message());
  fs::remove(probe, code);
}

/// Removes a checkpoint; its final name goes first, so that it is never seen
/// in part.
static void removeCheckpoint(const fs::path &path) {
  std::error_code code;
  fs::path temporary = path.parent_path() /
                       (temporaryPrefix + path.filename().string() + "-old");
  fs::remove_all(temporary, code);
  fs::rename(path, temporary, code);
  fs::remove_all(code ? path : temporary, code);
}

/// Gives `temporary` its final name; an older checkpoint there is exchanged.
static void publish(const fs::path &temporary, const fs::path &final) {
  if (rename(temporary.c_str(), final.c_str()) == 0)
    return;
  if ((errno == ENOTEMPTY || errno == EEXIST) &&
      renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(),
                RENAME_EXCHANGE) == 0) {
    std::error_code code;
    fs::remove_all(temporary, code);
    return;
  }
  fail("cannot write '{}': {}", final.string(), errorText(errno));
}

static nlohmann::ordered_json adaptJson(const AdaptState &state) {
  nlohmann::ordered_json json = {{"micro_batches", state.count},
                                 {"window_steps", state.steps},
                                 {"busy_seconds", state.busy},
                                 {"span_seconds", state.span},
                                 {"samples", state.samples},
                                 {"samples_per_busy_second", state.rateBefore},
                                 {"rejected", nlohmann::json::array()}};
  for (const AdaptState::Rejection &rejection : state.rejected)
    json["rejected"].push_back(
        {{"micro_batches", rejection.count}, {"windows", rejection.windows}});
  return json;
}

static AdaptState parseAdapt(const nlohmann::json &json) {
  AdaptState state;
  state.count = json.at("micro_batches");
  state.steps = json.at("window_steps");
  state.busy = json.at("busy_seconds");
  state.span = json.at("span_seconds");
  state.samples = json.at("samples");
  state.rateBefore = json.at("samples_per_busy_second");
  for (const nlohmann::json &rejection : json.at("rejected"))
    state.rejected.push_back(
        {rejection.at("micro_batches"), rejection.at("windows")});
  return state;
}

static nlohmann::ordered_json stateJson(const mgq_program &program,
                                        const TrainerState &state) {
  nlohmann::ordered_json json;
  json["version"] = stateVersion;
  json["compiler"] = program.compiler_version;
  json["fingerprint"] = program.fingerprint;
  json["step"] = state.step;
  json["epoch"] = state.epoch;
  json["updates"] = state.updates;
  json["empty_steps"] = state.emptySteps;
  json["nonfinite_steps"] = state.nonfiniteSteps;
  json["clip_history"] = state.clipHistory;
  if (state.lossScale.scale > 0)
    json["loss_scale"] = {{"scale", state.lossScale.scale},
                          {"clean_steps", state.lossScale.cleanSteps},
                          {"hysteresis", state.lossScale.hysteresis}};
  json["seed"] = state.seed;
  json["shuffle"] = state.shuffle;
  json["records"] = state.records;
  json["micro_batches"] = state.microBatches;
  if (state.adapt.count)
    json["adaptive"] = adaptJson(state.adapt);
  return json;
}

std::string mgq::rt::saveCheckpoint(const std::string &output,
                                    Transfer &transfer,
                                    const TrainerState &state, int64_t limit,
                                    CompressedGradients *residuals) {
  std::error_code code;
  std::string name = "checkpoint-" + std::to_string(state.step);
  fs::path final = fs::path(output) / name;
  fs::path temporary =
      fs::path(output) / (temporaryPrefix + std::to_string(state.step));
  fs::create_directories(output, code);
  fs::remove_all(temporary, code);
  if (!fs::create_directory(temporary, code))
    fail("cannot write '{}': {}", final.string(), code.message());
  try {
    writeKinds(temporary / "model.safetensors", transfer, modelKinds);
    std::vector<Kind> kinds = optimizerKinds;
    for (const Kind &kind : residualKinds(transfer, residuals))
      kinds.push_back(kind);
    writeKinds(temporary / "optimizer.safetensors", transfer, kinds);
    writeText(temporary / "trainer_state.json",
              stateJson(transfer.program(), state).dump(2) + "\n");
    publish(temporary, final);
  } catch (...) {
    fs::remove_all(temporary, code);
    throw;
  }
  syncFolder(output);
  removeOldCheckpoints(output, state.step, limit);
  return final.string();
}

void mgq::rt::removeOldCheckpoints(const std::string &output, int64_t step,
                                   int64_t limit) {
  auto found = listCheckpoints(output);
  for (size_t i = 0, kept = found.size();
       i < found.size() && limit > 0 && kept > static_cast<size_t>(limit); ++i)
    if (found[i].first != step) {
      removeCheckpoint(found[i].second);
      --kept;
    }
}

/// Checks that a file holds exactly the trainable parameters under `kinds`, in
/// the types that checkpoints have, or as any float type if `anyFloat`.
static void checkNames(const SafetensorsFile &file, const Transfer &transfer,
                       const std::vector<Kind> &kinds, bool anyFloat = false) {
  const mgq_program &program = transfer.program();
  std::set<std::string> extra;
  for (const auto &entry : file.tensors())
    extra.insert(entry.first);
  for (const Kind &kind : kinds)
    for (int32_t i : transfer.paramsWith(kind.part)) {
      const mgq_param &param = program.params[i];
      std::string name = kind.prefix + param.name;
      const TensorView *view = file.find(name);
      if (!view)
        fail("'{}' does not fit: it has no tensor '{}', which this program "
             "trains",
             file.path(), name);
      Shape wanted =
          transposedShape(shapeOf(param.stored), param.canonical_permutation);
      mgq_type type = typeOf(kind, param);
      bool known = anyFloat ? isFloat(view->type) : view->type == type;
      if (!known || view->shape != wanted)
        fail("'{}' does not fit: tensor '{}' is {} {}, expected {} {}",
             file.path(), name, typeName(view->type), shapeText(view->shape),
             typeName(type), shapeText(wanted));
      extra.erase(name);
    }
  if (!extra.empty())
    fail("'{}' does not fit: its tensor '{}' is not trained by this program",
         file.path(), *extra.begin());
}

/// The kinds of a file of optimizer states: residuals, if it has any, too.
static std::vector<Kind> kindsOf(const SafetensorsFile &file) {
  std::vector<Kind> kinds = optimizerKinds;
  std::set<std::string> prefixes;
  for (const auto &[name, view] : file.tensors())
    if (name.rfind("residual/", 0) == 0)
      prefixes.insert(name.substr(0, name.find('/', 9) + 1));
  if (prefixes.empty())
    return kinds;
  kinds.push_back(ownerKind);
  for (size_t i = 0; i + 1 < prefixes.size(); ++i)
    kinds.push_back(workerKind(static_cast<int32_t>(i)));
  return kinds;
}

static void readKinds(const SafetensorsFile &file, Transfer &transfer,
                      const std::vector<Kind> &kinds) {
  const mgq_program &program = transfer.program();
  for (const Kind &kind : kinds)
    for (int32_t i : transfer.paramsWith(kind.part)) {
      std::string name = kind.prefix + program.params[i].name;
      const TensorView &view = *file.find(name);
      transfer.write(i, kind.part, view.type, view.data);
    }
}

/// Checks that values are the rounded masters: one of two files exchanged for
/// another checkpoint's, or edited, would train something else than it shows.
static void checkMasters(const SafetensorsFile &model,
                         const SafetensorsFile &optimizer,
                         const Transfer &transfer) {
  constexpr int64_t piece = Transfer::pieceElements;
  std::vector<float> masters(piece);
  std::vector<std::byte> rounded(2 * piece);
  for (int32_t i : transfer.paramsWith(ParamPart::Master)) {
    const mgq_param &param = transfer.program().params[i];
    const TensorView *value = model.find(param.name);
    const TensorView *master = optimizer.find(masterKind.prefix + param.name);
    int64_t total = paramElements(param);
    for (int64_t begin = 0; begin < total; begin += piece) {
      int64_t count = std::min(piece, total - begin);
      memcpy(masters.data(), master->data + 4 * begin, 4 * count);
      convertFromFloat(value->type, masters.data(), rounded.data(), count);
      if (memcmp(rounded.data(), value->data + 2 * begin, 2 * count) != 0)
        fail("'{}' and '{}' do not belong together: tensor '{}' is not "
             "'master/{}' rounded to {}",
             model.path(), optimizer.path(), param.name, param.name,
             typeName(value->type));
    }
  }
}

/// Of a run with a dynamic scale; others have none.
static LossScaleState parseLossScale(const std::string &path,
                                     const nlohmann::json &json) {
  LossScaleState state;
  if (!json.contains("loss_scale"))
    return state;
  const nlohmann::json &saved = json["loss_scale"];
  state.scale = saved.at("scale");
  state.cleanSteps = saved.at("clean_steps");
  state.hysteresis = saved.at("hysteresis");
  if (!(state.scale >= LossScale::smallest) ||
      state.scale > LossScale::largest || state.cleanSteps < 0 ||
      state.cleanSteps >= LossScale::window || state.hysteresis < 1 ||
      state.hysteresis > LossScale::fullHysteresis)
    fail("'{}' is damaged: loss_scale {}", path, saved.dump());
  return state;
}

static TrainerState parseState(const std::string &path,
                               const mgq_program &program) {
  TrainerState state;
  try {
    auto json = nlohmann::json::parse(readText(path));
    if (json.at("version").get<int>() != stateVersion)
      fail("'{}' has version {}, expected {}", path,
           json.at("version").get<int>(), stateVersion);
    auto fingerprint = json.at("fingerprint").get<std::string>();
    state.step = json.at("step");
    state.epoch = json.at("epoch");
    state.updates = json.at("updates");
    state.emptySteps = json.at("empty_steps");
    state.nonfiniteSteps = json.at("nonfinite_steps");
    state.clipHistory = json.at("clip_history").get<std::vector<double>>();
    state.lossScale = parseLossScale(path, json);
    state.seed = json.at("seed");
    state.shuffle = json.at("shuffle");
    state.records = json.at("records");
    state.microBatches = json.at("micro_batches");
    if (json.contains("adaptive"))
      state.adapt = parseAdapt(json["adaptive"]);
    if (state.step < 0 || state.updates < 0 || state.updates > state.step)
      fail("'{}' is damaged: step {}, updates {}", path, state.step,
           state.updates);
    if (fingerprint != program.fingerprint)
      fail("'{}' is a checkpoint of another model or of other options: "
           "fingerprint {}, this program's is {}",
           folderOf(path), fingerprint, program.fingerprint);
  } catch (const nlohmann::json::exception &error) {
    fail("'{}' is damaged: {}", path, error.what());
  }
  return state;
}

/// Rank 0, with acceptCheckpoint() on the others.
static void readResiduals(const SafetensorsFile &file, Transfer &transfer,
                          CompressedGradients *residuals) {
  int32_t workers = transfer.fromFirst(savedWorkers(file, transfer, residuals));
  if (!workers)
    return;
  transfer.setStaging(residuals->stagingOffset());
  readKinds(file, transfer, {ownerKind});
  residuals->adoptOwners();
  for (int32_t i = 0; i < workers; ++i) {
    readKinds(file, transfer, {workerKind(i)});
    residuals->adoptWorker(i, workers);
  }
}

TrainerState mgq::rt::loadCheckpoint(const std::string &path,
                                     Transfer &transfer,
                                     CompressedGradients *residuals) {
  const mgq_program &program = transfer.program();
  std::error_code code;
  if (!fs::is_directory(path, code))
    fail("'{}' is not a checkpoint: it is not a folder", path);
  if (!fs::exists(path + "/trainer_state.json", code))
    fail("'{}' is not a checkpoint: it has no trainer_state.json", path);
  // Names first: they say more than two different fingerprints.
  SafetensorsFile model(path + "/model.safetensors");
  SafetensorsFile optimizer(path + "/optimizer.safetensors");
  checkNames(model, transfer, modelKinds);
  checkNames(optimizer, transfer, kindsOf(optimizer));
  TrainerState state = parseState(path + "/trainer_state.json", program);
  checkMasters(model, optimizer, transfer);
  readKinds(model, transfer, modelKinds);
  readKinds(optimizer, transfer, optimizerKinds);
  readResiduals(optimizer, transfer, residuals);
  return state;
}

void mgq::rt::loadParameters(const std::string &path, Transfer &transfer) {
  SafetensorsFile file(path);
  checkNames(file, transfer, modelKinds, /*anyFloat=*/true);
  readKinds(file, transfer, modelKinds);
}
