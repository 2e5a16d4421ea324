"""The words of the stories: one list per slot, every word of it fit for every place where the slot stands.

A list is one string, its options parted by commas. "she:" and "he:" open the two halves of a list
of persons. Three rules keep the stories parsable and their entropy exact (tests hold them):
a list has 16, 32 or 64 options; none begins with the whole of another; none starts with a letter
that lies about its sound (hour, unicorn), because "a" or "an" is chosen by the letter.
"""

FORMS = ("he", "him", "his", "boy", "brother", "king", "man")
PRONOUNS = {
    "he": dict(zip(FORMS, FORMS, strict=True)),
    "she": dict(zip(FORMS, ("she", "her", "her", "girl", "sister", "queen", "woman"), strict=True)),
}

WORDS = {
    # --- who ---
    "hero": """she: Lily, Mia, Anna, Ruby, Clara, Daisy, Lucy, Rosie; he: Tom, Ben, Max, Sam, Leo, Jack, Finn,
        Toby""",
    "friend": """she: Betty, Dora, Elsa, Fiona, Heidi, Mary, Sally, Zara; he: Bobby, Charlie, Eddie, Fred,
        Harry, Milo, Pablo, Yusuf""",
    "pet": """she: Honey, Clover, Poppy, Luna, Coco, Ginger, Maple, Hazel; he: Biscuit, Waffle, Rusty, Pip,
        Pickle, Noodle, Toffee, Barnaby""",
    "elder": """she: Mom, Grandma, Nana, Aunt Rose, Aunt May, Aunt Sue, Aunt Joy, Aunt Meg; he: Dad, Grandpa,
        Papa, Uncle Joe, Uncle Ray, Uncle Pete, Uncle Nick, Uncle Walt""",
    "neighbor": """she: Mrs. Bell, Mrs. Brook, Mrs. Dove, Mrs. Field, Mrs. Hill, Mrs. Snow, Mrs. West, Mrs.
        Wood; he: Mr. Cook, Mr. Finch, Mr. Green, Mr. King, Mr. Long, Mr. Park, Mr. Stone, Mr. Winter""",
    "trait": """kind, brave, curious, clever, gentle, cheerful, shy, quiet, happy, friendly, polite, playful,
        silly, funny, lively, careful, patient, helpful, thoughtful, merry, jolly, bold, calm, bright, sweet,
        smart, loving, hopeful, dreamy, sleepy, busy, eager, adventurous, caring, charming, cheeky, creative,
        daring, earnest, energetic, faithful, fearless, generous, giggly, graceful, hardworking, imaginative,
        joyful, lucky, mischievous, modest, nimble, peaceful, proud, sensible, sincere, spirited, strong,
        sunny, talkative, tidy, warmhearted, wise, witty""",
    "job": """baker, farmer, tailor, painter, gardener, teacher, doctor, nurse, sailor, fisherman, carpenter,
        shoemaker, blacksmith, miller, shepherd, beekeeper, mail carrier, librarian, singer, dancer, juggler,
        pilot, captain, firefighter, clockmaker, potter, weaver, cook, grocer, barber, florist, plumber""",
    "creature": """dragon, giant, troll, wizard, fairy, elf, goblin, mermaid, ogre, gnome, witch, phoenix,
        griffin, dwarf, genie, pixie""",
    # --- animals: no kind stands in two lists ---
    "animal": """fox, rabbit, squirrel, hedgehog, badger, otter, beaver, deer, bear, wolf, sheep, goat, pony,
        donkey, cow, pig, cat, dog, raccoon, skunk, chipmunk, weasel, panda, koala, tiger, lion, zebra,
        giraffe, elephant, monkey, camel, llama, kangaroo, sloth, moose, bison, yak, hippo, rhino, leopard,
        cheetah, panther, gorilla, lemur, meerkat, mongoose, armadillo, anteater, antelope, gazelle,
        porcupine, reindeer, wombat, possum, lynx, jaguar, bobcat, walrus, buffalo, baboon, hyena, tapir,
        mule, alpaca""",
    "critter": """puppy, kitten, bunny, hamster, duckling, chick, turtle, tortoise, guinea pig, frog, toad,
        lizard, gecko, mouse, lamb, piglet, mole, newt, gosling, gerbil, salamander, fawn, ferret, foal, calf,
        cub, crab, snail, iguana, chinchilla, hatchling, tadpole""",
    "bird": """robin, sparrow, owl, crow, raven, finch, wren, dove, chickadee, swallow, lark, thrush, magpie,
        swift, woodpecker, kingfisher, cardinal, canary, parrot, seagull, starling, warbler, hummingbird,
        oriole, nuthatch, falcon, eagle, hawk, nightingale, cuckoo, bluebird, blackbird""",
    "bug": """ladybug, beetle, ant, bumblebee, butterfly, moth, cricket, grasshopper, dragonfly, firefly,
        caterpillar, spider, earthworm, mantis, centipede, gnat""",
    "sea": """whale, dolphin, seal, shark, eel, salmon, tuna, trout, codfish, clownfish, swordfish,
        pufferfish, sea horse, sea turtle, sea lion, catfish, goldfish, manatee, narwhal, angelfish, octopus,
        squid, jellyfish, stingray, carp, herring, minnow, mackerel, penguin, porpoise, sunfish, sturgeon""",
    # --- when and where ---
    "weather": """sunny, rainy, windy, snowy, foggy, cloudy, chilly, warm, cool, cold, hot, bright, gray,
        misty, breezy, stormy, frosty, mild, crisp, clear, damp, drizzly, icy, blustery, fresh, gloomy, hazy,
        lovely, quiet, wet, dry, golden""",
    "fine": """fine, lazy, busy, happy, ordinary, special, sleepy, cheerful, calm, peaceful, long, slow,
        merry, pleasant, perfect, beautiful, wonderful, funny, strange, magical, gentle, jolly, sweet, silly,
        simple, splendid, glorious, exciting, good, delightful, marvelous, charming""",
    "time": """morning, afternoon, day, lunchtime, weekend, holiday, teatime, playtime, midday, Monday,
        Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday""",
    "once": """Once upon a time, Long ago, Not long ago, Many years ago, In a land far away, In a little town,
        In a small village, In a quiet valley, In a house with a red door, On a green island, On top of a
        windy hill, On a busy street, On a little farm, At the edge of the forest, At the end of a long lane,
        Near the blue sea, Near a sleepy river, Beside a silver lake, Behind the old mill, Below a tall
        mountain, Beyond the hills, Far in the north, High in the hills, Deep in the countryside, Down by the
        harbor, Across the wide river, Close to the railway, Not far from here, Somewhere in the south, By the
        old stone bridge, Next to a big meadow, Around the corner from the bakery""",
    "place": """pond, river, lake, bridge, barn, mill, bakery, library, garden, park, school, market, harbor,
        beach, meadow, forest, orchard, castle, tower, well, fountain, lighthouse, train station, bus stop,
        playground, zoo, museum, church, town hall, post office, fire station, farm, stable, henhouse,
        greenhouse, vineyard, cornfield, pumpkin patch, rose garden, waterfall, cave, hill, cliff, canal,
        dock, marsh, creek, stream, field, haystack, campsite, cabin, cottage, old gate, big rock, sandpit,
        swing set, bandstand, ice rink, toy shop, candy store, bookshop, flower shop, village green""",
    "hide": """under the bed, behind the sofa, in the laundry basket, in the toy box, behind the door, in the
        closet, on the bookshelf, in the bathtub, under the table, under the rug, behind the curtain, in the
        kitchen drawer, on the windowsill, under the pillow, in the pantry, in the hallway, behind the clock,
        on the stairs, in the attic, in the cellar, under the armchair, beside the piano, behind the fridge,
        by the fireplace, on the top shelf, under the blanket, in the cupboard, under the desk, beside the
        lamp, in the sewing basket, behind the mirror, under the stairs""",
    "spot": """in the garden shed, under the porch, behind the garage, in the flower bed, on the swing, in the
        sandbox, under a bush, behind the fence, in the tall grass, by the mailbox, in the doghouse, on the
        doorstep, in the treehouse, under the bench, beside the pond, on the slide, behind the woodpile, near
        the gate, in the wheelbarrow, under the apple tree, in the vegetable patch, by the birdbath, on the
        picnic table, behind the rosebush, among the tulips, beside the well, in a pile of leaves, under the
        hedge, on the garden path, in the hammock, behind the watering can, at the bus stop""",
    "tree": """oak, maple, apple, pear, cherry, pine, willow, birch, elm, plum, walnut, chestnut, beech,
        cedar, fig, lemon""",
    # --- things ---
    "toy": """ball, kite, drum, doll, robot, puppet, puzzle, whistle, toy castle, teddy bear, yo-yo, jump
        rope, toy train, toy boat, toy car, toy plane, spinning top, paper plane, flute, trumpet, bell,
        rattle, lantern, flashlight, telescope, compass, magnet, paintbrush, sketchbook, storybook, notebook,
        music box, snow globe, umbrella, backpack, blanket, pillow, bucket, shovel, helmet, crown, mask, wand,
        racket, frisbee, pinwheel, xylophone, tambourine, harmonica, camera, clock, kaleidoscope, piggy bank,
        jigsaw, board game, chess set, tea set, rocket, sailboat, pirate ship, submarine, fire truck, lunch
        box, dinosaur""",
    "box": """box, basket, bag, bucket, chest, trunk, crate, suitcase, sack, barrel, wagon, cart, tub, hamper,
        satchel, bread box, pouch, tin, pot, bowl, jar, wheelbarrow, toolbox, picnic basket, laundry basket,
        shopping bag, treasure chest, hatbox, pail, drawer, kettle, flowerpot""",
    "treasure": """key, button, shell, feather, pebble, ring, bell, marble, acorn, bead, medal, badge,
        crystal, gem, locket, ticket, stamp, map, pinecone, whistle, brooch, thimble, ribbon, spoon, fossil,
        pearl, bracelet, pocket watch, compass, magnet, hairpin, figurine""",
    "wear": """hat, scarf, coat, jacket, cap, sweater, apron, shirt, vest, robe, cloak, beret, hoodie,
        cardigan, poncho, shawl, costume, headband, bonnet, jersey, pullover, tunic, bow tie, necktie,
        bandana, sash, muffler, turban, kilt, beanie, nightshirt, waistcoat""",
    "instrument": """drum, flute, guitar, piano, violin, trumpet, harp, banjo, cello, clarinet, tuba,
        trombone, saxophone, harmonica, accordion, xylophone, tambourine, triangle, recorder, oboe, fiddle,
        lute, mandolin, cornet, bugle, organ, piccolo, kazoo, gong, zither, marimba, sitar""",
    "vehicle": """truck, bus, tractor, fire engine, taxi, van, bulldozer, digger, tram, motorbike, scooter,
        wagon, steamroller, jeep, ambulance, snowplow, dump truck, mail van, race car, camper, milk truck,
        garbage truck, tow truck, cement mixer, limousine, buggy, minivan, hay cart, street sweeper, moped,
        police car, forklift""",
    "color": """red, blue, green, yellow, orange, purple, pink, brown, black, white, gray, golden, silver,
        violet, scarlet, crimson, turquoise, teal, navy, beige, cream, peach, lavender, maroon, lime, ivory,
        indigo, amber, copper, bronze, coral, mint, dark red, dark blue, dark green, dark brown, dark purple,
        dark gray, dark pink, dark orange, light blue, light green, light gray, light brown, light pink, light
        purple, light orange, light yellow, pale blue, pale green, pale yellow, pale pink, pale purple, pale
        gray, pale orange, pale brown, bright red, bright blue, bright green, bright yellow, bright orange,
        bright pink, bright purple, bright white""",
    "look": """shiny, little, big, old, new, pretty, dusty, funny, lovely, strange, tiny, sparkly, wooden,
        striped, spotted, painted, polished, faded, fancy, plain, bright, smooth, beautiful, odd, unusual,
        wonderful, handmade, enormous, ancient, crooked, elegant, curious""",
    # --- food and flowers ---
    "treats": """pancakes, waffles, cookies, muffins, cupcakes, brownies, donuts, scones, biscuits, crackers,
        pretzels, sandwiches, dumplings, noodles, meatballs, carrots, puddings, omelets, popsicles, truffles,
        tortillas, pizzas, kebabs, cream puffs, spring rolls, jam tarts, wafers, raisins, nuts, almonds,
        chestnuts, walnuts, tarts, pies, buns, rolls, bagels, croissants, crepes, eclairs, macaroons,
        gingersnaps, jellybeans, gumdrops, lollipops, caramels, marshmallows, candies, pastries, fritters,
        nachos, tacos, burritos, samosas, sausages, pickles, peppermints, tomatoes, radishes, potatoes, corn
        cakes, rice cakes, honey cakes, turnovers""",
    "fruits": """apples, pears, plums, peaches, cherries, oranges, lemons, limes, bananas, mangoes, melons,
        grapes, figs, dates, apricots, kiwis, papayas, pineapples, coconuts, strawberries, raspberries,
        blueberries, blackberries, cranberries, gooseberries, tangerines, nectarines, pomegranates, quinces,
        grapefruits, avocados, olives""",
    "veggies": """carrots, potatoes, beans, peas, onions, mushrooms, tomatoes, turnips, leeks, radishes,
        peppers, cabbages, beets, parsnips, pumpkins, zucchinis""",
    "flavor": """chocolate, vanilla, strawberry, lemon, banana, carrot, cherry, apple, peach, coconut, honey,
        ginger, cinnamon, pumpkin, blueberry, raspberry, caramel, almond, orange, plum, pear, walnut,
        hazelnut, mango, pineapple, maple, mint, sugar, apricot, toffee, lime, poppy seed""",
    "flowers": """roses, tulips, daisies, lilies, violets, pansies, poppies, sunflowers, daffodils, marigolds,
        buttercups, bluebells, snowdrops, orchids, irises, peonies, asters, begonias, carnations, crocuses,
        dahlias, foxgloves, geraniums, hyacinths, lilacs, lupines, petunias, primroses, zinnias, cornflowers,
        cowslips, dandelions""",
    # --- what people do, say and feel ---
    "number": """two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fifteen,
        twenty, thirty, fifty""",
    "game": """tag, hopscotch, checkers, marbles, leapfrog, catch, soccer, baseball, basketball, tennis,
        hide-and-seek, follow the leader, musical chairs, tug of war, dominoes, chess, cards, kickball,
        dodgeball, bingo, charades, jacks, badminton, ping-pong, volleyball, pirates, explorers, knights,
        circus, statues, croquet, bowling""",
    "hobby": """painting, drawing, singing, dancing, reading, cooking, baking, gardening, swimming, skating,
        climbing trees, telling jokes, telling stories, knitting, sewing, fishing, hiking, camping, juggling,
        whistling, building forts, collecting shells, collecting stamps, making puppets, flying kites, riding
        bikes, jumping rope, counting stars, picking flowers, writing poems, skipping stones, solving riddles,
        flying toy planes, riding horses, riding trains, counting clouds, counting sheep, picking apples,
        picking berries, making hats, making masks, making music, making soup, collecting coins, collecting
        buttons, collecting leaves, collecting stones, collecting feathers, watching birds, watching clouds,
        watching ships, watching trains, watching bugs, building castles, building boats, building robots,
        climbing hills, climbing rocks, playing chess, playing cards, playing music, skipping rope, catching
        leaves, chasing butterflies""",
    "topic": """dragons, pirates, trains, robots, knights, fairies, dinosaurs, rockets, mermaids, castles,
        whales, wolves, kings, monkeys, giants, wizards, elves, bears, horses, ships, stars, planets,
        volcanoes, jungles, deserts, islands, oceans, cowboys, astronauts, explorers, detectives, inventors,
        the sea, the moon, the sun, the wind, the snow, the rain, the stars, the clouds, the forest, the
        mountains, the old days, the north pole, outer space, hidden treasure, magic beans, talking animals,
        flying horses, flying ships, brave sailors, brave girls, clever foxes, clever boys, hungry bears,
        hungry wolves, tiny elves, sleepy giants, lucky coins, golden eggs, silver bells, secret doors, secret
        gardens, singing birds""",
    "walked": """walked, ran, skipped, hurried, strolled, wandered, marched, raced, dashed, jogged, trotted,
        danced, rushed, bounced, hopped, sped""",
    "smiled": """smiled, grinned, laughed, giggled, chuckled, clapped, cheered, nodded, beamed, blushed,
        winked, bowed, waved, hummed, whistled, jumped for joy""",
    "kindly": """kindly, softly, gently, quietly, warmly, cheerfully, clearly, politely, calmly, firmly,
        sweetly, slowly, with a smile, wisely, patiently, tenderly, thoughtfully, with a nod, simply, quickly,
        honestly, earnestly, lovingly, carefully, sincerely, in a soft voice, pleasantly, helpfully, promptly,
        fondly, nicely, bravely, with a wink, with a bow, with a grin, with a wave, with a laugh, with great
        care, with a kind look, with open arms, with a warm smile, with shining eyes, in a warm voice, in a
        low voice, in a clear voice, in a kind voice, in a gentle voice, in a friendly voice, in a cheerful
        voice, in a calm voice, in a tiny voice, in a happy voice, at once, right away, after a moment, after
        a while, without delay, without waiting, from the heart, very kindly, very softly, very gently, very
        warmly, very quietly""",
    "cheer": """Hooray, Wow, Yippee, Yay, Hurrah, Oh my, Oh wow, Oh joy, Goodness, Amazing, Wonderful,
        Fantastic, Marvelous, Super, Splendid, Terrific, Brilliant, Great, Lovely, Perfect, Woohoo, Bravo, How
        lovely, How wonderful, What a surprise, What luck, Incredible, Fabulous, Delightful, Excellent,
        Magnificent, Hip hip hooray, Oh yes, Oh good, Oh what fun, Oh what joy, Oh what luck, Oh happy day,
        How nice, How sweet, How grand, How funny, How perfect, How splendid, How amazing, How exciting, What
        fun, What joy, What a day, What a sight, What a treat, What a wonder, What a happy day, What good
        news, Good for us, Good news, Good work, Well done, Look at that, Just look at that, Just in time,
        Just like that, At last, Thank goodness""",
    "sound": """Bang, Boom, Bump, Clang, Clank, Clatter, Click, Crack, Crash, Creak, Crunch, Ding, Drip, Fizz,
        Flop, Honk, Pop, Plop, Rattle, Rumble, Rustle, Scratch, Splash, Splat, Squeak, Swish, Swoosh, Tap,
        Thud, Thump, Whoosh, Zoom""",
    "crash": """Bang, Boom, Bump, Clang, Clank, Clatter, Clunk, Crack, Crash, Crunch, Plop, Smash, Splat,
        Thud, Thump, Wham""",
    "feeling": """happy, glad, proud, joyful, cheerful, delighted, thrilled, merry, pleased, excited,
        grateful, thankful, lucky, content, jolly, overjoyed, wonderful, hopeful, peaceful, cozy, loved,
        relieved, satisfied, special, strong, full of joy, warm inside, light as a feather, ten feet tall, on
        top of the world, better than ever, snug and safe, very happy, very glad, very proud, very lucky, very
        merry, very brave, very special, so happy, so glad, so proud, so lucky, so merry, so thankful, so
        peaceful, as happy as a king, as happy as a lark, as happy as could be, as proud as a king, as proud
        as could be, as light as a cloud, as bright as the sun, as good as new, full of hope, full of love,
        full of fun, full of sunshine, like singing, like dancing, like laughing out loud, like jumping for
        joy, happier than ever, on top of a cloud""",
    "gloom": """sad, upset, worried, lonely, gloomy, unhappy, blue, glum, dismayed, nervous, tearful,
        miserable, disappointed, troubled, uneasy, wretched, heartbroken, downhearted, anxious, forlorn,
        sorrowful, distressed, lost, helpless, like crying, terrible, awful, very small, hopeless,
        discouraged, frustrated, a bit sad, very sad, very upset, very lonely, very worried, very nervous,
        very low, so sad, so upset, so lonely, so worried, so nervous, so small, a bit lost, a bit lonely, a
        bit worried, a little blue, a little lost, a little upset, a little nervous, rather sad, rather
        lonely, rather worried, rather glum, as sad as could be, as small as a mouse, as gray as the rain,
        like hiding, like giving up, like running away, like a cloud without sun, full of worry, full of
        sorrow""",
    # --- how it ends ---
    "closing": """It was a day to remember., What a wonderful day it was!, Everyone slept well that night.,
        And they all lived happily ever after., The stars came out one by one., That night the moon was big
        and bright., And so the day ended with a smile., It was the best day of the whole year., Nobody ever
        forgot that day., The sun went down behind the hills., From then on everything was better., Good
        things come to those who are kind., A little kindness goes a long way., Sometimes the smallest things
        bring the biggest joy., True friends are worth more than gold., And the whole world seemed to smile.,
        Dinner tasted extra good that evening., The birds sang until it was dark., Sweet dreams came quickly
        that night., And that is how the story ends., Laughter filled the air until bedtime., Even the clouds
        looked happy., Tomorrow would be another adventure., The evening was calm and full of stars., It felt
        like a dream come true., There were smiles all around., Kind hearts always find a way., The crickets
        sang a soft good-night song., Home had never felt so warm., Hugs were given to everyone., Soon it was
        time for bed., Night came softly over the roofs., People still tell this story today., Who knows what
        will happen next?, All was well again., At bedtime there was one more happy story to tell., Being kind
        is never a mistake., Courage can be very small and still be strong., Helping is the best feeling in
        the world., Joy is bigger when it is shared., No one wanted the day to end., Only the old cat was
        still awake., Peace and quiet came with the evening., Some days are simply magic., The wind hummed a
        happy tune., Two hearts can do more than one., Up in the sky a star winked., Warm lights glowed in
        every window., You could hear the laughing from far away., A soft breeze carried the laughter away.,
        Before long it was time to dream., Cheerful songs were sung all evening., Dreams were sweet that
        night., Every ending is a new beginning., For once everything was just right., Great days often start
        with small surprises., Happy days like this are worth keeping., If you listen you can still hear the
        laughter., Just then the first star appeared., Love makes everything better., May all your days be
        just as bright!, New friends are never far away., Over the hills the sky turned pink., Patience and
        hope had won the day.""",
}
