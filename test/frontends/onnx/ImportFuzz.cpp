//===- ImportFuzz.cpp - The importer on damaged models
//---------------------===//
//
//   mgq-fuzz-import FOLDER COUNT [SEED]
//
// Damages the models of FOLDER (*.onnx), in bytes or in their fields, COUNT
// times in all, and imports each. Built with AddressSanitizer and UBSan. A
// model that is refused must be refused with one error; what is imported must
// be valid IR. The damaged model of a fault is left in
// FOLDER/damaged/model.onnx.
//
//===----------------------------------------------------------------------===//

#include "frontends/onnx/Import.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Verifier.h"
#include "llvm/Support/raw_ostream.h"
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <onnx-ml.pb.h>
#include <random>
#include <sstream>

namespace fs = std::filesystem;
using onnx::ModelProto;
using onnx::NodeProto;

static std::mt19937 random_(0);

static int64_t pick(int64_t count) {
  return count <= 0 ? 0 : int64_t(random_() % uint64_t(count));
}

static int64_t oddNumber() {
  static const int64_t numbers[] = {
      0, 1, -1, 2, 3, -2, INT64_MAX, INT64_MIN, INT32_MAX, 1 << 20};
  return numbers[pick(std::size(numbers))];
}

/// Cuts, flips, removes or doubles bytes.
static std::string damageBytes(std::string text) {
  if (text.empty())
    return text;
  size_t at = pick(text.size()), length = 1 + pick(16);
  switch (pick(4)) {
  case 0:
    return text.substr(0, at);
  case 1:
    for (int64_t i = pick(8); i >= 0; --i)
      text[pick(text.size())] = char(random_());
    return text;
  case 2:
    return text.erase(at, length);
  default:
    return text.insert(at, text.substr(pick(text.size()), length));
  }
}

/// Changes a tensor's type, dimensions or data.
static void damageTensor(onnx::TensorProto &tensor) {
  switch (pick(5)) {
  case 0:
    tensor.set_data_type(pick(24));
    break;
  case 1:
    tensor.add_dims(oddNumber());
    break;
  case 2:
    if (tensor.dims_size())
      tensor.set_dims(pick(tensor.dims_size()), oddNumber());
    break;
  case 3:
    tensor.mutable_raw_data()->resize(pick(64));
    break;
  default:
    for (char &c : *tensor.mutable_raw_data())
      c = char(random_());
  }
}

static void damageAttribute(onnx::AttributeProto &attribute) {
  if (attribute.has_t() && pick(2))
    return damageTensor(*attribute.mutable_t());
  switch (pick(5)) {
  case 0:
    attribute.set_type(onnx::AttributeProto::AttributeType(pick(15)));
    break;
  case 1:
    attribute.set_i(oddNumber());
    break;
  case 2:
    if (attribute.ints_size())
      attribute.set_ints(pick(attribute.ints_size()), oddNumber());
    break;
  case 3:
    attribute.add_ints(oddNumber());
    break;
  default:
    attribute.mutable_s()->append("x");
  }
}

static void damageNode(NodeProto &node) {
  switch (pick(6)) {
  case 0:
    if (node.input_size())
      node.set_input(pick(node.input_size()), "");
    break;
  case 1:
    if (node.input_size())
      node.mutable_input()->RemoveLast();
    break;
  case 2:
    if (node.input_size())
      node.add_input(node.input(pick(node.input_size())));
    break;
  case 3:
    if (node.output_size() > 1)
      node.mutable_output()->RemoveLast();
    else
      node.add_output("more");
    break;
  case 4:
    if (node.attribute_size())
      node.mutable_attribute()->RemoveLast();
    break;
  default:
    if (node.attribute_size())
      damageAttribute(*node.mutable_attribute(pick(node.attribute_size())));
  }
}

/// Changes the shape or type of an input.
static void damageInput(onnx::ValueInfoProto &input) {
  auto &tensor = *input.mutable_type()->mutable_tensor_type();
  auto &shape = *tensor.mutable_shape();
  switch (pick(4)) {
  case 0:
    tensor.set_elem_type(pick(24));
    break;
  case 1:
    shape.add_dim()->set_dim_value(pick(4));
    break;
  case 2:
    if (shape.dim_size())
      shape.mutable_dim()->RemoveLast();
    break;
  default:
    if (shape.dim_size())
      shape.mutable_dim(pick(shape.dim_size()))->set_dim_value(oddNumber());
  }
}

/// One to three changes of a model's fields.
static std::string damageFields(const std::string &text) {
  ModelProto model;
  if (!model.ParseFromString(text))
    return text;
  auto &graph = *model.mutable_graph();
  for (int64_t i = pick(3); i >= 0; --i) {
    int64_t what = pick(8);
    if (what < 4 && graph.node_size())
      damageNode(*graph.mutable_node(pick(graph.node_size())));
    else if (what < 6 && graph.input_size())
      damageInput(*graph.mutable_input(pick(graph.input_size())));
    else if (what == 6 && graph.initializer_size())
      damageTensor(*graph.mutable_initializer(pick(graph.initializer_size())));
    else if (model.opset_import_size())
      model.mutable_opset_import(0)->set_version(1 + pick(30));
  }
  return model.SerializeAsString();
}

/// Imports the model at `path`; false, with a line, if that went wrong.
static bool import(const fs::path &path, int64_t &imported) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  int64_t errors = 0;
  std::string first;
  mlir::ScopedDiagnosticHandler handler(
      &context, [&](mlir::Diagnostic &diagnostic) {
        if (diagnostic.getSeverity() != mlir::DiagnosticSeverity::Error)
          return mlir::success();
        if (errors++ == 0)
          first = diagnostic.str();
        return mlir::success();
      });
  auto module = mgq::onnx::importModel(&context, path.string(), {});
  imported += bool(module);
  if (!module && errors == 1)
    return true;
  if (module && errors == 0 && mlir::succeeded(mlir::verify(*module)))
    return true;
  llvm::errs() << (module ? "imported" : "refused") << " with " << errors
               << " errors: " << first << "\n";
  return false;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    llvm::errs() << "usage: mgq-fuzz-import FOLDER COUNT [SEED]\n";
    return 2;
  }
  random_.seed(argc > 3 ? std::stoul(argv[3]) : 1);
  std::vector<fs::path> paths;
  for (const auto &entry : fs::directory_iterator(argv[1]))
    if (entry.path().extension() == ".onnx")
      paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const fs::path &path : paths) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    seeds.push_back(text.str());
  }
  if (seeds.empty()) {
    llvm::errs() << "no models in " << argv[1] << "\n";
    return 2;
  }
  fs::path damaged = fs::path(argv[1]) / "damaged" / "model.onnx";
  fs::create_directories(damaged.parent_path());
  int64_t count = std::stoll(argv[2]), imported = 0, bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::string &seed = seeds[i % seeds.size()];
    std::string text = pick(4) ? damageFields(seed) : damageBytes(seed);
    std::ofstream(damaged, std::ios::binary) << text;
    if (import(damaged, imported))
      continue;
    ++bad;
    llvm::errs() << "case " << i << ", from "
                 << paths[i % seeds.size()].string() << "\n";
    fs::copy_file(damaged,
                  damaged.parent_path() / ("fault" + std::to_string(i)),
                  fs::copy_options::overwrite_existing);
  }
  llvm::outs() << count << " damaged models of " << seeds.size() << ": "
               << imported << " imported, " << count - imported << " refused, "
               << bad << " faults\n";
  return bad ? 1 : 0;
}
