/* Loads the library of a file on Windows and prints the names of its instruction sets. */
#include <stdint.h>
#include <stdio.h>
#include <windows.h>

int main(int count, char** given) {
    HMODULE library = LoadLibraryA(given[1]);
    if (!library) return 1;
    const char* (*name)(int64_t) = (const char* (*)(int64_t))GetProcAddress(library, "fastcar_instruction_set");
    for (int64_t i = 0; name(i); i++) puts(name(i));
    return GetProcAddress(library, "fastcar_kernels") == NULL;
}
