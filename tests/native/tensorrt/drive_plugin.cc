// Uses the plugin library as TensorRT does: drive_plugin LIBRARY ARCHIVE COMMAND...
//   launches TOKENS SEQUENCES MAX_BLOCKS   the arguments of each launch, from attention_launches.h itself
//   enqueue TOKENS SEQUENCES MAX_BLOCKS    through the creator, with a context, as a loaded plan
//   building TOKENS SEQUENCES MAX_BLOCKS   the same, as a plan that is being built
//   copied | unaligned                     enqueue with pools that were copied, with an odd address
//   describe                               name, aliases, workspace of 3 rows, what is serialized
#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "attention_launches.h"

using namespace nvinfer1;
using namespace blink::tensorrt;

namespace {

class Logger : public ILogger, public ILoggerFinder {
  public:
    void log(Severity, AsciiChar const* message) noexcept override { std::printf("error %s\n", message); }
    ILogger* findLogger() override { return this; }
};

const Shape SHAPE{8, 2, 64, 64, 5, 0.25f};

void print_launches(const std::string& archive, const Step& step) {
    const auto kernels = unpack_kernels(archive.data(), archive.size());
    const Buffers at{16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 1 << 20};
    for (const Launch& launch : attention_launches(SHAPE, kernels, at, step, 64)) {
        std::printf("%s %u %u %u :", launch.kernel->name.c_str(), launch.grid[0], launch.grid[1], launch.grid[2]);
        for (uint64_t argument : launch.arguments) std::printf(" %lu", argument);
        std::printf("\n");
    }
}

struct Enqueued {
    void* inputs[9];
    void* outputs[3];
    PluginTensorDesc shapes[9]{};

    explicit Enqueued(const Step& step) {
        for (int i = 0; i < 9; ++i) inputs[i] = reinterpret_cast<void*>(uintptr_t(4096 * (1 + i)));
        outputs[0] = reinterpret_cast<void*>(uintptr_t(65536));
        outputs[1] = inputs[3];
        outputs[2] = inputs[4];
        shapes[0].dims = {3, {step.tokens, 8, 64}};
        shapes[5].dims = {2, {step.sequences, step.max_blocks}};
        shapes[6].dims = {1, {step.sequences}};
    }
};

void describe(IPluginV3* plugin) {
    auto* core = static_cast<IPluginV3OneCore*>(plugin->getCapabilityInterface(PluginCapabilityType::kCORE));
    auto* build = static_cast<IPluginV3OneBuildV2*>(plugin->getCapabilityInterface(PluginCapabilityType::kBUILD));
    auto* runtime = static_cast<IPluginV3OneRuntime*>(plugin->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
    DynamicPluginTensorDesc tensors[9]{};
    tensors[6].max = {1, {3}};
    std::printf("%s %s %s outputs %d\n", core->getPluginName(), core->getPluginVersion(), core->getPluginNamespace(),
                build->getNbOutputs());
    std::printf("aliases %d %d %d workspace %zu\n", build->getAliasedInput(0), build->getAliasedInput(1),
                build->getAliasedInput(2), build->getWorkspaceSize(tensors, 9, tensors, 3));
    const PluginFieldCollection* fields = runtime->getFieldsToSerialize();
    for (int i = 0; i < fields->nbFields; ++i) {
        std::printf("field %s %d\n", fields->fields[i].name, fields->fields[i].length);
    }
}

}  // namespace

int main(int count, char** words) {
    std::ifstream file(words[2], std::ios::binary);
    const std::string archive{std::istreambuf_iterator<char>(file), {}}, command = words[3];
    const auto number = [&](int place) { return count > place ? std::atoll(words[place]) : 3; };
    const Step step{number(4), number(5), count > 6 ? number(6) : 16};
    if (command == "launches") return print_launches(archive, step), 0;

    void* library = dlopen(words[1], RTLD_NOW);
    if (library == nullptr) return std::printf("%s\n", dlerror()), 1;
    Logger logger;
    reinterpret_cast<void (*)(ILoggerFinder*)>(dlsym(library, "setLoggerFinder"))(&logger);
    int32_t creators = 0;
    const auto list =
        reinterpret_cast<IPluginCreatorInterface* const* (*)(int32_t&)>(dlsym(library, "getCreators"))(creators);
    auto* creator = static_cast<IPluginCreatorV3One*>(list[0]);
    const int32_t sizes[6] = {SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim, SHAPE.block_size, SHAPE.programs, 1};
    const PluginField fields[] = {{"shape", sizes, PluginFieldType::kINT32, 6},
                                  {"scale", &SHAPE.scale, PluginFieldType::kFLOAT32, 1},
                                  {"kernels", archive.data(), PluginFieldType::kINT8, int32_t(archive.size())}};
    const PluginFieldCollection collection{command == "fieldless" ? 1 : 3, fields};
    const TensorRTPhase phase = command == "building" ? TensorRTPhase::kBUILD : TensorRTPhase::kRUNTIME;
    const std::unique_ptr<IPluginV3> plugin(creator->createPlugin("layer", &collection, phase));
    if (plugin == nullptr) return 1;
    if (command == "describe") return describe(plugin.get()), 0;

    auto* runtime = static_cast<IPluginV3OneRuntime*>(plugin->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
    const std::unique_ptr<IPluginV3> attached(runtime->attachToContext(nullptr));
    if (attached == nullptr) return 1;
    runtime = static_cast<IPluginV3OneRuntime*>(attached->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
    Enqueued step_of(step);
    if (command == "copied") step_of.outputs[1] = reinterpret_cast<void*>(uintptr_t(1 << 21));
    if (command == "unaligned") step_of.inputs[0] = reinterpret_cast<void*>(uintptr_t(8));
    const int32_t status =
        runtime->enqueue(step_of.shapes, step_of.shapes, step_of.inputs, step_of.outputs,
                         reinterpret_cast<void*>(uintptr_t(1 << 20)), reinterpret_cast<cudaStream_t>(uintptr_t(77)));
    std::printf("status %d\n", status);
    return 0;
}
