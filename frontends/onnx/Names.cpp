//===- Names.cpp - Names of parameters ------------------------------------===//

#include "frontends/onnx/Names.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Regex.h"

using namespace llvm;
using namespace mgq::onnx;
using ::onnx::NodeProto;

/// Elements up to which torch.onnx merges equal initializers. Larger ones that
/// are used in two places are tied on purpose.
static constexpr int64_t kMergedElements = 1024;

template <typename Proto>
static StringRef metadata(const Proto &proto, StringRef key) {
  for (const auto &entry : proto.metadata_props())
    if (key == entry.key())
      return entry.value();
  return {};
}

/// The strings of a printed Python list, "['', 'a.b', 'add_1']".
static SmallVector<StringRef> parseList(StringRef text) {
  SmallVector<StringRef> items;
  while (true) {
    size_t start = text.find_first_of("'\"");
    if (start == StringRef::npos)
      return items;
    size_t end = text.find(text[start], start + 1);
    if (end == StringRef::npos)
      return items;
    items.push_back(text.slice(start + 1, end));
    text = text.drop_front(end + 1);
  }
}

std::string mgq::onnx::scopeOf(const NodeProto &node) {
  auto scopes = parseList(metadata(node, "pkg.torch.onnx.name_scopes"));
  // The last one is the traced operation itself.
  if (scopes.size() >= 2)
    return scopes[scopes.size() - 2].str();
  StringRef name = node.name();
  if (!name.consume_front("/"))
    return {};
  SmallVector<StringRef> parts;
  name.split(parts, '/');
  return join(ArrayRef(parts).drop_back(), ".");
}

bool mgq::onnx::isMadeUp(StringRef name) {
  if (name.starts_with("onnx::") || all_of(name, isDigit))
    return true;
  // Names that torch.fx gives to results of operations.
  static const Regex fx(
      "^_?(val|t|expand|where|alias|view|reshape|squeeze|unsqueeze|permute|"
      "transpose|unsafe_view|slice|select|split|chunk|cat|stack|clone|detach|"
      "to|full|"
      "zeros|ones|arange|masked_fill|index|index_put|gather|repeat|"
      "scalar_tensor|lifted_tensor|tensor|lift_fresh|lift_fresh_copy|to_copy|"
      "add|sub|mul|div|pow|neg|exp|log|sqrt|rsqrt|sin|cos|tanh|"
      "bitwise_and|bitwise_or|bitwise_not|logical_and|logical_or|logical_not|"
      "eq|ne|lt|le|gt|ge|triu|tril|cumsum|outer|matmul|mm|bmm|linear|"
      "(full|zeros|ones|empty)_like|(sub)?_?Constant|Constant)"
      "(_default)?(_[0-9]+)*$");
  return fx.match(name) ||
         Regex("^(.*_)?Constant(_[0-9]+)?_output_[0-9]+$").match(name);
}

ParamNames::ParamNames(const ::onnx::GraphProto &graph,
                       const std::vector<GlobPattern> &trainable)
    : trainable(trainable) {
  for (const NodeProto &node : graph.node())
    for (int i = 0; i < node.input_size(); ++i)
      if (!node.input(i).empty())
        uses[node.input(i)].push_back({&node, i});
  readOrigins(graph);
  learnPrefixes(graph);
  learnAdapters(graph);
  for (const auto &tensor : graph.initializer())
    nameInitializer(tensor);
  findAbsent();
}

//===----------------------------------------------------------------------===//
// What torch.export and the optimizer of its graphs write down
//===----------------------------------------------------------------------===//

void ParamNames::readOrigins(const ::onnx::GraphProto &graph) {
  // Lines `p_layer_weight: PARAMETER target='layer.weight'`.
  StringRef rest =
      metadata(graph, "pkg.torch.export.ExportedProgram.graph_signature");
  while (!rest.empty()) {
    auto [line, tail] = rest.split('\n');
    rest = tail;
    StringRef target = line.split(": PARAMETER target='").second;
    StringRef name = target.take_until([](char c) { return c == '\''; });
    if (!name.empty())
      signature.insert(name);
  }
  for (const auto &info : graph.value_info()) {
    StringRef kind =
        metadata(info, "pkg.torch.export.graph_signature.InputSpec.kind");
    if (!kind.empty() && kind != "PARAMETER")
      buffers.insert(info.name());
    if (kind == "PARAMETER")
      aliases.insert(info.name());
    StringRef folded = metadata(info, "pkg.onnxscript.optimizer.folded_from");
    if (folded.empty())
      continue;
    std::vector<std::string> &list = sources[info.name()];
    for (StringRef source : parseList(folded))
      list.push_back(source.str());
  }
  // Statistics of a BatchNormalization, which no optimizer may touch.
  for (const NodeProto &node : graph.node())
    if (node.op_type() == "BatchNormalization")
      for (int i = 3; i < std::min(node.input_size(), 5); ++i)
        buffers.insert(node.input(i));
}

/// Lists parameters of the module that no initializer holds.
void ParamNames::findAbsent() {
  StringSet<> present;
  for (const auto &entry : names)
    for (const auto &use : entry.second)
      present.insert(use.second.name);
  for (const auto &entry : signature)
    if (!present.contains(entry.first()))
      absent.push_back(entry.first().str());
  llvm::sort(absent);
}

bool ParamNames::isTable(StringRef name) const {
  return isMadeUp(name) || buffers.contains(name) || sources.contains(name) ||
         (!signature.empty() && !signature.contains(name) &&
          !aliases.contains(name));
}

ArrayRef<std::string> ParamNames::sourcesOf(StringRef name) const {
  auto found = sources.find(name);
  return found == sources.end() ? ArrayRef<std::string>()
                                : ArrayRef(found->second);
}

bool ParamNames::trains(StringRef name) const {
  return any_of(trainable,
                [&](const GlobPattern &glob) { return glob.match(name); });
}

/// Which parameter of its module a node's input is by the operator: "weight",
/// "bias", or empty. `transposed`: the module stores the transpose.
static StringRef roleOf(const NodeProto &node, int index, StringRef className,
                        bool knowsClass, bool &transposed) {
  StringRef op = node.op_type();
  bool isNorm = op == "LayerNormalization" || op == "RMSNormalization" ||
                op == "GroupNormalization" || op == "InstanceNormalization" ||
                op == "BatchNormalization" ||
                op == "SimplifiedLayerNormalization";
  bool isConv = op == "Conv" || op == "ConvTranspose";
  bool likeLinear = className.ends_with("Linear");
  bool likeConv1D = className.ends_with("Conv1D"); // GPT-2's, [in, out]
  if (isNorm || isConv) {
    static constexpr StringLiteral roles[] = {"", "weight", "bias",
                                              "running_mean", "running_var"};
    return index < 5 ? StringRef(roles[index]) : StringRef();
  }
  if (op == "MatMul" && index == 1 && (likeLinear || !knowsClass)) {
    transposed = true;
    return "weight";
  }
  if (op == "MatMul" && index == 1 && likeConv1D)
    return "weight";
  if (op == "Gemm" && (likeLinear || likeConv1D || !knowsClass)) {
    bool transB = any_of(node.attribute(), [](const auto &attribute) {
      return attribute.name() == "transB" && attribute.i() != 0;
    });
    transposed = index == 1 && !transB && !likeConv1D;
    return index == 1 ? "weight" : index == 2 ? "bias" : "";
  }
  if (op == "Gather" && index == 0 && className.ends_with("Embedding"))
    return "weight";
  if (op == "Add" &&
      (likeLinear || likeConv1D ||
       className.contains("torch.nn.modules.conv.Conv") ||
       className.contains("LayerNorm") || className.contains("GroupNorm")))
    return "bias";
  if (op == "Mul" && className.contains("Norm"))
    return "weight";
  if (op == "PRelu" && index == 1)
    return "weight";
  return {};
}

/// Names a weight by its user; the name is empty where nothing is known.
ParamName ParamNames::derive(Use use, int depth) const {
  const NodeProto &node = *use.first;
  StringRef op = node.op_type();
  // The user of a renamed, widened or transposed weight knows more.
  bool isTranspose = op == "Transpose";
  if (op == "Identity" || op == "Cast" || isTranspose) {
    StringRef output = node.output_size() ? StringRef(node.output(0)) : "";
    if (op == "Identity" && !isMadeUp(output) && output.contains('.'))
      return {output.str(), false};
    auto found = uses.find(output);
    if (depth > 4 || found == uses.end() || found->second.empty())
      return {};
    ParamName name = derive(found->second.front(), depth + 1);
    name.transposed ^= isTranspose;
    return name;
  }
  std::string scope = scopeOf(node);
  auto classes = parseList(metadata(node, "pkg.torch.onnx.class_hierarchy"));
  StringRef className =
      classes.size() >= 2 ? classes[classes.size() - 2] : StringRef();
  bool transposed = false;
  StringRef role =
      roleOf(node, use.second, className, !classes.empty(), transposed);
  if (scope.empty() || role.empty())
    return {};
  bool expanded = op == "PRelu" ||
                  (className.contains("Norm") && (op == "Mul" || op == "Add"));
  return {modulePath(scope) + "." + role.str(), transposed, expanded};
}

//===----------------------------------------------------------------------===//
// TorchScript's paths
//===----------------------------------------------------------------------===//

static bool isTorchScript(const NodeProto &node) {
  return StringRef(node.name()).starts_with("/");
}

/// Learns from names that were kept. A node in "llm.model.norm" that uses
/// "llm.base_model.model.norm.weight" tells that paths below "llm" belong to
/// modules below "llm.base_model".
void ParamNames::learnPrefixes(const ::onnx::GraphProto &graph) {
  StringMap<StringMap<int>> votes;
  auto vote = [&](StringRef name) {
    if (isMadeUp(name) || !name.contains('.'))
      return;
    auto found = uses.find(name);
    if (found == uses.end())
      return;
    for (Use use : found->second) {
      if (!isTorchScript(*use.first))
        continue;
      std::string scopeText = scopeOf(*use.first);
      StringRef scope = scopeText, module = name.rsplit('.').first;
      bool common = false;
      while (!scope.empty() && !module.empty() &&
             scope.rsplit('.').second == module.rsplit('.').second &&
             scope.contains('.') && module.contains('.')) {
        scope = scope.rsplit('.').first;
        module = module.rsplit('.').first;
        common = true;
      }
      if (common && scope != module)
        ++votes[scope][module];
    }
  };
  for (const auto &tensor : graph.initializer())
    vote(tensor.name());
  for (const NodeProto &node : graph.node())
    if (node.op_type() == "Identity" && node.output_size() == 1)
      vote(node.output(0));
  for (const auto &scope : votes) {
    int most = 0;
    for (const auto &module : scope.second)
      if (module.second > most) {
        most = module.second;
        prefixes[scope.first()] = module.first().str();
      }
  }
}

/// PEFT keeps LoRA's matrices in dictionaries lora_A and lora_B by adapter;
/// TorchScript calls them "default" and "default_1" in the order of use, beside
/// "base_layer".
void ParamNames::learnAdapters(const ::onnx::GraphProto &graph) {
  StringSet<> scopes;
  for (const NodeProto &node : graph.node())
    if (isTorchScript(node))
      scopes.insert(scopeOf(node));
  StringMap<std::vector<std::string>> products;
  for (const NodeProto &node : graph.node()) {
    if (!isTorchScript(node) || node.op_type() != "MatMul")
      continue;
    std::string scope = scopeOf(node);
    StringRef parent = StringRef(scope).rsplit('.').first;
    if (parent == scope || StringRef(scope).ends_with(".base_layer") ||
        !scopes.contains((parent + ".base_layer").str()))
      continue;
    std::vector<std::string> &list = products[parent];
    if (!is_contained(list, scope))
      list.push_back(scope);
  }
  for (const auto &entry : products) {
    if (entry.second.size() != 2)
      continue;
    StringRef adapter = StringRef(entry.second[0]).rsplit('.').second;
    adapters[entry.second[0]] = (entry.first() + ".lora_A." + adapter).str();
    adapters[entry.second[1]] = (entry.first() + ".lora_B." + adapter).str();
  }
}

/// The name of the module that a path means.
std::string ParamNames::modulePath(std::string scope) const {
  if (auto found = adapters.find(scope); found != adapters.end())
    scope = found->second;
  for (StringRef head = scope; !head.empty();
       head = head.contains('.') ? head.rsplit('.').first : StringRef())
    if (auto found = prefixes.find(head); found != prefixes.end())
      return found->second + scope.substr(head.size());
  return scope;
}

void ParamNames::nameInitializer(const ::onnx::TensorProto &tensor) {
  auto found = uses.find(tensor.name());
  if (found == uses.end() || isBuffer(tensor.name()))
    return;
  bool madeUp = isMadeUp(tensor.name()) || sources.contains(tensor.name());
  int64_t elements = 1;
  for (int64_t dim : tensor.dims())
    if (llvm::MulOverflow(elements, dim, elements))
      elements = INT64_MAX; // refused where the tensor is read
  // Scalars that an exporter names are constants (an epsilon, a factor), and so
  // is what it computed from no parameter.
  ArrayRef<std::string> source = sourcesOf(tensor.name());
  bool isConstant = (madeUp && tensor.dims_size() == 0) ||
                    (!source.empty() && all_of(source, [&](StringRef name) {
                      return isMadeUp(name) || sources.contains(name);
                    }));
  // Folded from one tensor alone: its transpose, of a parameter that is
  // elsewhere in the graph.
  bool isCopy = source.size() == 1 && tensor.dims_size() == 2 && !isConstant;
  // Names by use, in the order of first appearance.
  std::vector<std::pair<Use, ParamName>> derived;
  std::vector<std::string> distinct;
  bool anyTrains = false, anyRenames = false;
  for (Use use : found->second) {
    ParamName name = isConstant ? ParamName() : derive(use);
    if (!signature.empty() && !signature.contains(name.name))
      name = {};
    // Not the weight, but what a norm computes from it: Gemma's 1 + weight.
    if (name.expanded && source.size() > 1 && tensor.dims_size() == 1)
      name = {};
    if (isCopy && name.name != source[0])
      name = {source[0], true};
    bool renames = use.first->op_type() == "Identity" && !name.name.empty();
    anyRenames |= renames;
    if (name.name.empty())
      name = {tensor.name(), false};
    // TorchScript names by Identity; its own name holds at all other uses.
    if (!renames && !madeUp && !use.first->name().empty() &&
        use.first->name()[0] == '/')
      name = {tensor.name(), false};
    anyTrains |= trains(name.name);
    if (!is_contained(distinct, name.name))
      distinct.push_back(name.name);
    derived.push_back({use, name});
  }
  // An embedding with several names is tied on purpose, however small.
  bool isTied = any_of(found->second, [](Use use) {
    return use.first->op_type() == "Gather" && use.second == 0;
  });
  auto isListed = [&](const std::string &name) {
    return signature.contains(name);
  };
  if (isTied && !madeUp && any_of(distinct, isListed))
    aliases.insert(tensor.name());
  bool merged = distinct.size() > 1 && !isTied &&
                (elements <= kMergedElements || anyRenames) && anyTrains;
  if (merged)
    apart.push_back({tensor.name(), distinct});
  auto &table = names[tensor.name()];
  for (auto &[use, name] : derived) {
    ParamName &slot = table[use];
    if (merged)
      slot = name;
    else if (madeUp)
      slot = derived.front().second;
    else
      slot = {tensor.name(), false};
  }
}

ParamName ParamNames::at(StringRef initializer, const NodeProto *node,
                         int index) const {
  auto found = names.find(initializer);
  if (found != names.end()) {
    auto use = found->second.find({node, index});
    if (use != found->second.end())
      return use->second;
  }
  return {initializer.str(), false};
}
